"""Another source made harder: one period much larger than the others, bursts of one repeated sample, or noise.

Test samples stay as they are, so figures on a perturbed stream compare with figures on the stream itself.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coreplay.data.samples import Ints
from coreplay.data.sources import load, source
from coreplay.data.stream import FederatedStream
from coreplay.errors import InputError
from coreplay.seeding import generator
from coreplay.validation import Fraction

Times = Annotated[float, Field(ge=1, allow_inf_nan=False)]


@source("perturbed")
def perturbed(
    *,
    source: str,
    options: Mapping[str, Any] | None = None,
    large_period: Annotated[int, Field(ge=0)] | None = None,
    times: Times = 10.0,
    burst: Fraction = 0.0,
    noise: Fraction = 0.0,
    seed: int = 0,
) -> FederatedStream:
    """Take the stream of another source, and make one period larger, repeat samples in bursts, or add noise.

    In all periods but `large_period`, clients keep only one in `times` of their training samples, at random. In each
    period a fraction `burst` of a client's training samples is replaced by copies of one of them, and a fraction
    `noise` loses its meaning: the words of a text become random words of the stream, an image gets another label.
    """
    stream = load(source, **dict(options or {}))
    if large_period is not None and large_period >= stream.periods:
        raise InputError(f"large_period must be 0 to {stream.periods - 1}: got {large_period}")
    rng = generator(seed, "perturbed")
    rows = np.arange(len(stream))
    if large_period is not None:
        rows = np.flatnonzero(stream.test | (stream.period == large_period) | _thinned(stream, times, rng))
    content = stream.content if isinstance(stream.content, np.ndarray) else np.array(stream.all().texts, dtype=object)
    content, label = content[rows], stream.label[rows]
    test, period, client = stream.test[rows], stream.period[rows], stream.client_number[rows]
    if burst:
        original = _bursts(client * stream.periods + period, test, burst, rng)
        content, label = content[original], label[original]
    noisy = np.flatnonzero(~test & (rng.random(len(rows)) < noise))
    if len(noisy):
        if isinstance(stream.content, np.ndarray):
            label[noisy] = _other_labels(label[noisy], len(stream.label_names), rng)
        else:
            content[noisy] = _random_words(content.tolist(), noisy, rng)
    names = stream.label_names
    return FederatedStream(
        [stream.clients[k] for k in client.tolist()],
        period,
        test,
        content if isinstance(stream.content, np.ndarray) else content.tolist(),
        [names[k] if k >= 0 else None for k in label.tolist()] if names else None,
        stream.timestamp[rows] if stream.has_times else None,
        periods=stream.periods,
        label_names=names or None,
        notes=stream.notes,
    )


def _thinned(stream: FederatedStream, times: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which rows are among one in `times` of their client, period and split, rounded up."""
    cell = (stream.client_number * stream.periods + stream.period) * 2 + stream.test
    draw = np.lexsort((rng.random(len(cell)), cell))
    ranks = np.empty(len(cell), dtype=np.int64)
    ranks[draw] = np.arange(len(cell)) - np.searchsorted(cell[draw], cell[draw])
    return np.asarray(ranks < np.ceil(np.bincount(cell)[cell] / times))


def _bursts(cell: Ints, test: NDArray[np.bool_], fraction: float, rng: np.random.Generator) -> Ints:
    """Return for each row the row whose content it gets: its own, or in each cell the same one for a fraction."""
    original = np.arange(len(cell))
    for value in np.unique(cell[~test]):
        rows = rng.permutation(np.flatnonzero((cell == value) & ~test))
        original[rows[: round(fraction * len(rows))]] = rows[0]
    return original


def _other_labels(label: Ints, kinds: int, rng: np.random.Generator) -> Ints:
    """Return for each label another one."""
    if kinds < 2:
        raise InputError(f"noise in images needs at least two labels to exchange: got {kinds}")
    return np.asarray((label + rng.integers(1, kinds, len(label))) % kinds)


def _random_words(texts: list[str], rows: Ints, rng: np.random.Generator) -> list[str]:
    """Return texts of as many words as those of these rows, drawn evenly from all distinct words."""
    words = sorted({word for text in texts for word in text.split()})
    return [" ".join(words[k] for k in rng.integers(len(words), size=len(texts[row].split()))) for row in rows]
