"""How rows get their period, split and client.

By time, with start s, length ℓ and test fraction q, a row of time τ lies in period t = ⌊(τ − s)/ℓ⌋ and is a test row if
it lies in the last q of its period: (τ − s) mod ℓ ≥ (1 − q)ℓ. The paper's five weeks, of which the fifth tests, are
``Periods(days=35, test=0.2)``.
"""

import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coreplay.data.readers import moment
from coreplay.data.samples import Ints
from coreplay.data.stream import MOST_PERIODS
from coreplay.errors import InputError
from coreplay.seeding import generator
from coreplay.validation import Count, Positive, TestFraction

DAY = 86_400
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Periods:
    """How rows get their period and their split.

    A split column decides which rows test if `test` is None. Otherwise the last rows of each period test, by time or
    order; in periods that are given without times, a hash of the text decides, so that no test text is trained on.

    Parameters
    ----------
    by : str, optional
        "given" (a period column), "time" or "order"; by default what `days` or `start`, an order column, a period
        column or timestamps suggest, in this order.
    days : float, optional
        By time: the length of a period.
    start : str, float or date, optional
        By time: when the first period begins; by default with the first row. Rows outside are counted and left out.
    number : int, optional
        The number of periods: by time without `days`, into which the whole span is cut; by order, of equally many rows.
    test : float, optional
        The fraction of a period that tests; 0.2 where there is no split column.
    """

    by: Literal["given", "time", "order"] | None = None
    days: Positive | None = None
    start: str | float | date | None = None
    number: Annotated[int, Field(ge=1, le=MOST_PERIODS)] | None = None
    test: TestFraction | None = None

    @property
    def test_fraction(self) -> float:
        """The fraction of a period that tests, if there is no split column."""
        return 0.2 if self.test is None else self.test

    def kind(self, available: set[str]) -> str:
        """Return how the periods are made, given the roles that the file has columns for."""
        guesses = {"time": self.days is not None or self.start is not None}
        guesses |= {"order": "order" in available, "given": "period" in available}
        wanted: str = self.by or next((kind for kind, fits in guesses.items() if fits), "time")
        needed = {"given": "period", "time": "timestamp", "order": "order"}[wanted]
        if needed not in available:
            raise InputError(
                f"periods by {wanted} need a column for the {needed}: name one with columns={{{needed!r}: ...}}, or "
                "make periods another way"
            )
        return wanted


@dataclass(frozen=True)
class Clients:
    """Who holds which rows, and how many.

    Parameters
    ----------
    by : str
        "column"; or a partitioner of flwr-datasets over the label: "dirichlet", "pathological" or "iid".
    number : int
        The number of clients that a partitioner makes.
    alpha : float
        The concentration of "dirichlet": the smaller, the more clients differ.
    labels_per_client : int
        The number of labels per client of "pathological".
    min_samples : int
        Clients with fewer training samples in all are left out and reported.
    max_samples : int, optional
        The largest number of samples per client, period and split, chosen at random.
    max_test_samples : int, optional
        A separate limit for test samples.
    max_clients : int, optional
        The largest number of clients, chosen at random.
    seed : int
        The seed of these random choices.
    """

    by: Literal["column", "dirichlet", "pathological", "iid"] = "column"
    number: Count = 100
    alpha: Positive = 0.5
    labels_per_client: Count = 2
    min_samples: Annotated[int, Field(ge=0)] = 1
    max_samples: Count | None = None
    max_test_samples: Count | None = None
    max_clients: Count | None = None
    seed: int = 0


@dataclass(frozen=True)
class Cut:
    """The period of each row (-1 = outside all periods), whether it tests, and how many periods there are."""

    period: Ints
    test: Bools
    periods: int


def cut_by_time(seconds: Ints, rule: Periods) -> Cut:
    """Cut by the clock.

    >>> weeks = np.array([0, 27, 28, 34, 35, 69]) * DAY
    >>> cut = cut_by_time(weeks, Periods(days=35, test=0.2))
    >>> cut.period.tolist(), cut.test.tolist()
    ([0, 0, 0, 0, 1, 1], [False, False, True, True, False, True])
    """
    start = int(seconds.min()) if rule.start is None else moment(rule.start)
    span = int(seconds.max()) - start + 1
    if rule.days is not None:
        length = max(1, round(rule.days * DAY))
        number = rule.number or max(1, -(-span // length))
    else:
        number = rule.number or 10
        length = max(1, -(-span // number))
    if number > MOST_PERIODS:
        raise InputError(f"days={rule.days} gives {number} periods: use longer ones, or number=")
    since = seconds - start
    period = np.floor_divide(since, length)
    outside = (period < 0) | (period >= number)
    test = since % length >= math.ceil(length * (1 - rule.test_fraction) - 1e-9)
    return Cut(np.where(outside, -1, period), test & (rule.test_fraction > 0), number)


def cut_by_order(order: NDArray[Any], rule: Periods) -> Cut:
    """Cut into parts of equally many rows by the order; rows of equal order stay together.

    >>> cut = cut_by_order(np.array([5, 1, 9, 7, 3, 3]), Periods(number=2, test=0.5))
    >>> cut.period.tolist(), cut.test.tolist()
    ([1, 0, 1, 1, 0, 0], [False, False, True, False, True, True])
    """
    number = rule.number or 10
    cuts = (-(-len(order) * k // number) for k in range(1, number))
    edges = np.sort(order)[[cut for cut in cuts if cut < len(order)]]
    period = np.searchsorted(edges, order, side="right").astype(np.int64)
    return Cut(period, last_of_each(period, order, rule.test_fraction), number)


def last_of_each(period: Ints, order: NDArray[Any], share: float) -> Bools:
    """Return which rows are in the last `share` of the rows of their period; equal orders stay together."""
    test = np.zeros(len(period), dtype=bool)
    for t in np.unique(period):
        rows = np.flatnonzero(period == t)
        first = math.ceil(len(rows) * (1 - share) - 1e-9)
        if first < len(rows):
            test[rows] = order[rows] >= np.sort(order[rows])[first]
    return test


def cut_as_given(period: Ints, seconds: Ints | None, texts: Sequence[str], rule: Periods) -> Cut:
    """Take periods as they are; by time, or else by a hash of the text, some rows test.

    All rows with one text get the same hash, so that no test text is trained on.
    """
    number = int(period.max()) + 1 if rule.number is None else rule.number
    period = np.where(period < number, period, -1)
    if seconds is not None:
        return Cut(period, last_of_each(period, seconds, rule.test_fraction), number)
    bound = round(rule.test_fraction * 2**32)
    return Cut(period, np.array([bound > 0 and _hash(text) < bound for text in texts]), number)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def client_names(number: int) -> list[str]:
    """Return names of clients in an order that sorting keeps.

    >>> client_names(11)[9:]
    ['client09', 'client10']
    """
    width = len(str(number - 1))
    return [f"client{k:0{width}d}" for k in range(number)]


def partition(labels: Sequence[str | None], rule: Clients) -> list[str]:
    """Deal rows out to `rule.number` clients by their label, with flwr-datasets' partitioners.

    A row whose label no client was given ("pathological") belongs to nobody: its client is "".
    """
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, PathologicalPartitioner

    n, kinds = rule.number, len(set(labels))
    if len(labels) < n:
        raise InputError(f"number of clients must be at most the number of rows: got {n} for {len(labels)} rows")
    if rule.by == "pathological" and rule.labels_per_client > kinds:
        problem = f"got {rule.labels_per_client} for {kinds} labels"
        raise InputError(f"labels_per_client must be at most the number of labels: {problem}")
    seed = int(generator(rule.seed, "partition").integers(2**31))
    partitioner: Any = IidPartitioner(n)
    if rule.by == "dirichlet":
        partitioner = DirichletPartitioner(n, "label", rule.alpha, min_partition_size=0, seed=seed)
    elif rule.by == "pathological":
        partitioner = PathologicalPartitioner(n, "label", rule.labels_per_client, seed=seed)
    order = generator(rule.seed, "partition rows").permutation(len(labels))
    partitioner.dataset = datasets.Dataset.from_dict({"label": [str(labels[k]) for k in order], "row": order})
    client = [""] * len(labels)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Classes: .* will NOT be used")  # the stream's notes say how many rows
            for k, name in enumerate(client_names(n)):
                for row in partitioner.load_partition(k)["row"]:
                    client[row] = name
    except ValueError as error:
        raise InputError(f"clients by {rule.by} can't be dealt out ({error}): use fewer, or other labels") from None
    return client


def limited(client: Sequence[str], period: Ints, test: Bools, rule: Clients) -> tuple[Ints, list[str]]:
    """Return the rows that the limits leave, in their order, and a note of every client that they cost."""
    names, who = np.unique(np.asarray(client, dtype=object), return_inverse=True)
    kept, notes = np.ones(len(who), dtype=bool), []
    limits = {"max_samples": rule.max_samples, "max_test_samples": rule.max_test_samples}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if given:
        most = given.get("max_samples", len(who))
        cell = (who * (int(period.max()) + 1) + period) * 2 + test
        draw = np.lexsort((generator(rule.seed, "limit").random(len(who)), cell))
        ranks = np.empty(len(who), dtype=np.int64)
        ranks[draw] = np.arange(len(who)) - np.searchsorted(cell[draw], cell[draw])
        kept = ranks < np.where(test, given.get("max_test_samples", most), most)
    if not kept.all():
        above = ", ".join(f"{name}={limit}" for name, limit in given.items())
        notes.append(f"{int((~kept).sum())} rows above {above} per client, period and split: left out")
    sizes = np.bincount(who[kept & ~test], minlength=len(names))
    stay, small = np.flatnonzero(sizes >= rule.min_samples), np.flatnonzero(sizes < rule.min_samples)
    if len(small):
        rows = int(np.isin(who, small).sum())
        some = ", ".join(repr(str(names[k])) for k in small[:3]) + (", ..." if len(small) > 3 else "")
        problem = f"{len(small)} of {len(names)} clients have fewer than {rule.min_samples} training samples ({some})"
        notes.append(f"{problem}: left out with their {rows} rows")
    if rule.max_clients is not None and len(stay) > rule.max_clients:
        notes.append(f"{rule.max_clients} of {len(stay)} clients chosen at random (max_clients={rule.max_clients})")
        stay = generator(rule.seed, "keep").choice(stay, size=rule.max_clients, replace=False)
    return np.flatnonzero(kept & np.isin(who, stay)), notes
