"""What a stream is like: sizes, how different clients are, how the words drift, each beside a random split.

Few words differ by chance alone, so every divergence stands beside the same measure of the same rows shuffled over
cells of the same sizes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial.distance import pdist, squareform
from scipy.special import rel_entr

from coreplay.data.stream import FederatedStream
from coreplay.seeding import generator

LEVELS = 4  # grey levels of a pixel, which are the words of an image
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Description:
    """The measures of a stream; divergences are Jensen-Shannon, base 2, over words."""

    samples: int
    test_samples: int
    clients: int
    periods: int
    distinct: int
    mean_words: float
    vocabulary: int
    labels: int
    samples_per_period: list[int]
    clients_per_period: list[int]
    client_sizes: dict[str, float]
    median_periods_active: float
    clients_with_5_in_every_period: int
    drift_first_last: float
    drift_first_last_random: float
    drift_neighbours: list[float]
    drift_neighbours_random: float
    drift_matrix: list[list[float]]
    heterogeneity: float
    heterogeneity_random: float
    heterogeneity_higher: float
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the measures as plain numbers."""
        return asdict(self)


@dataclass(frozen=True)
class Details:
    """The arrays behind the measures, for figures."""

    counts: NDArray[np.int64]
    of_clients: Floats
    of_clients_random: Floats


def describe(stream: FederatedStream, seed: int = 0) -> tuple[Description, Details]:
    """Measure a stream.

    >>> from coreplay.data import load
    >>> text, _ = describe(load("synthetic", num_clients=20, seed=2))
    >>> text.heterogeneity > text.heterogeneity_random, text.drift_first_last > text.drift_first_last_random
    (True, True)
    """
    words, rows, size = _words(stream)
    rng = generator(seed, "describe")
    who, when = stream.client_number, stream.period
    of_periods = _table(words, when[rows], stream.periods, size).toarray()
    drift = between_rows(of_periods)

    def chance(a: int, b: int) -> float:
        """Return the divergence of two periods whose rows are shuffled between the two."""
        both = np.flatnonzero((when == a) | (when == b))
        dealt = np.full(len(stream), -1)
        dealt[both] = when[rng.permutation(both)] == b
        of_both = dealt[rows] >= 0
        return float(between_rows(_table(words[of_both], dealt[rows][of_both], 2, size).toarray())[0, 1])

    last = stream.periods - 1
    by_chance = [chance(t, t + 1) for t in range(last)]
    apart, apart_random = (
        to_the_rest(_table(words, cell[rows], len(stream.clients), size))
        for cell in (who, who[rng.permutation(len(who))])
    )
    known = np.isfinite(apart) & np.isfinite(apart_random)
    counts = stream.counts()
    sizes = counts.sum(axis=1)
    quantiles = {"least": 0.0, "quarter": 0.25, "median": 0.5, "three_quarters": 0.75, "most": 1.0}
    description = Description(
        samples=len(stream),
        test_samples=int(stream.test.sum()),
        clients=len(stream.clients),
        periods=stream.periods,
        distinct=_distinct(stream),
        mean_words=len(rows) / len(stream),
        vocabulary=int((of_periods.sum(axis=0) > 0).sum()),
        labels=len(stream.label_names),
        samples_per_period=counts.sum(axis=0).tolist(),
        clients_per_period=(counts > 0).sum(axis=0).tolist(),
        client_sizes={name: float(np.quantile(sizes, q)) for name, q in quantiles.items()},
        median_periods_active=float(np.median((counts > 0).sum(axis=1))),
        clients_with_5_in_every_period=int((counts >= 5).all(axis=1).sum()),
        drift_first_last=float(drift[0, -1]),
        drift_first_last_random=chance(0, last) if last else 0.0,
        drift_neighbours=np.diag(drift, 1).tolist(),
        drift_neighbours_random=_mean(by_chance),
        drift_matrix=drift.tolist(),
        heterogeneity=_mean(apart[known]),
        heterogeneity_random=_mean(apart_random[known]),
        heterogeneity_higher=_mean((apart > apart_random)[known]),
        notes=list(stream.notes),
    )
    return description, Details(counts, apart[known], apart_random[known])


def _mean(values: Sequence[float] | NDArray[Any]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _table(words: NDArray[np.int64], cells: NDArray[np.int64], count: int, size: int) -> csr_array:
    """Return how often each word occurs in each cell."""
    table = csr_array((np.ones(len(words)), (cells, words)), shape=(count, size))
    table.sum_duplicates()
    return table


def _words(stream: FederatedStream) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return every word of the stream as a number, the row it is in, and how many different words there are.

    The words of a text are its runs of letters, digits and apostrophes, lower-cased; those of an array, the grey levels
    of its pixels.
    """
    if isinstance(stream.content, np.ndarray):
        flat = stream.content.reshape(len(stream), -1)
        low, high = flat.min(), max(flat.max(), flat.min() + 1e-9)
        level = np.minimum(((flat - low) / (high - low) * LEVELS).astype(np.int64), LEVELS - 1)
        words = level + LEVELS * np.arange(flat.shape[1])
        return words.ravel(), np.repeat(np.arange(len(stream)), flat.shape[1]), LEVELS * flat.shape[1]
    plain = pc.replace_substring_regex(pc.utf8_lower(stream.content), r"[^\pL\pN']+", " ")
    pieces = pc.split_pattern(pc.utf8_trim_whitespace(plain), " ")
    coded = pc.list_flatten(pieces).dictionary_encode()
    rows = pc.list_parent_indices(pieces).to_numpy()
    return coded.indices.to_numpy().astype(np.int64), rows.astype(np.int64), len(coded.dictionary)


def _distinct(stream: FederatedStream) -> int:
    if isinstance(stream.content, pa.Array):
        return len(pc.unique(stream.content))
    return len(np.unique(stream.content.reshape(len(stream), -1), axis=0))


def between_rows(counts: Floats) -> Floats:
    """Return the Jensen-Shannon divergences, in bits, of all pairs of rows of counts; 0 where one is empty.

    >>> between_rows(np.array([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]])).round(9).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    bits = squareform(pdist(counts, "jensenshannon") ** 2 / np.log(2))
    return np.where(np.isfinite(bits), bits, 0.0)  # NaN is the root of a rounding error


def to_the_rest(counts: csr_array) -> Floats:
    """Return the divergence of each row to the sum of all other rows (NaN where there is none).

    Where a row lacks a word, the others' part is log 2 times their share of it, so only its own words are visited.
    """
    total = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel()
    result = np.full(counts.shape[0], np.nan)
    for k in range(counts.shape[0]):
        cells = slice(counts.indptr[k], counts.indptr[k + 1])
        own = counts.data[cells].astype(np.float64)
        if 0 < own.sum() < total.sum():
            p, q = own / own.sum(), (total[counts.indices[cells]] - own) / (total.sum() - own.sum())
            m = (p + q) / 2
            nats = (rel_entr(p, m).sum() + rel_entr(q, m).sum() + np.log(2) * (1 - q.sum())) / 2
            result[k] = max(0.0, nats / np.log(2))  # rounding may have made it negative
    return result
