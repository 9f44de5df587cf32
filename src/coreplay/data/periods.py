"""Periods: from timestamps, from an order column, or as given; and which rows of a period are for testing.

By time, with start s, length ℓ and test share q, a row of time τ lies in period t = ⌊(τ − s)/ℓ⌋ and is a test row if it
lies in the last q of its period: (τ − s) mod ℓ ≥ (1 − q)ℓ. The paper's five weeks, of which the fifth tests, are
``Periods(days=35, test=0.2)``.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data.readers import moment
from coreplay.data.samples import Ints
from coreplay.data.stream import MOST_PERIODS
from coreplay.errors import InputError, unknown

DAY = 86_400
Bools = NDArray[np.bool_]
KINDS = ("given", "time", "order")
TESTS = ("given", "last", "text")


@dataclass(frozen=True)
class Periods:
    """How rows get their period and their split.

    Parameters
    ----------
    by : str, optional
        "given" (a period column), "time" or "order"; by default what `days`, an order column, a period column or
        timestamps suggest, in this order.
    days : float, optional
        By time: the length of a period.
    start : str, float or date, optional
        By time: when the first period begins; by default with the first row. Rows outside are counted and left out.
    number : int, optional
        The number of periods: by time without `days`, into which the whole span is cut; by order, of equally many rows.
    test : float, optional
        The share of a period that tests; a fifth where there is no split column.
    test_by : str, optional
        "given" (a split column), "last" (the last rows of the period, by time or order) or "text" (by a hash of the
        text, so that no test text is trained on); by default the first of these that can be, and a split column only
        where no share is named.
    """

    by: str | None = None
    days: float | None = None
    start: str | float | date | None = None
    number: int | None = None
    test: float | None = None
    test_by: str | None = None

    def __post_init__(self) -> None:
        if self.by is not None and self.by not in KINDS:
            raise unknown("way to make periods", self.by, KINDS)
        if self.test_by is not None and self.test_by not in TESTS:
            raise unknown("way to split", self.test_by, TESTS)
        if not 0 <= self.share < 1:
            raise InputError(f"the test share must be at least 0 and below 1: got {self.test}")
        if self.days is not None and not (math.isfinite(self.days) and self.days * DAY >= 1):
            raise InputError(f"days must be at least a second, 1/86400: got {self.days}")
        if self.number is not None and not 1 <= self.number <= MOST_PERIODS:
            raise InputError(f"the number of periods must be from 1 to {MOST_PERIODS}: got {self.number}")

    @property
    def share(self) -> float:
        """The share of a period that tests, if there is no split column."""
        return 0.2 if self.test is None else self.test

    def kind(self, available: set[str]) -> str:
        """Return how the periods are made, given the roles that the file has columns for."""
        wanted = self.by
        if wanted is None:
            by_time = self.days is not None or self.start is not None
            guesses = [("time", by_time), ("order", "order" in available), ("given", "period" in available)]
            wanted = next((kind for kind, fits in guesses if fits), "time")
        needed = {"given": "period", "time": "timestamp", "order": "order"}[wanted]
        if needed not in available:
            raise InputError(
                f"periods by {wanted} need a column for the {needed}: name one with columns={{{needed!r}: ...}}, or "
                "make periods another way"
            )
        return wanted


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
        length = round(rule.days * DAY)
        number = rule.number or max(1, -(-span // length))
    else:
        number = rule.number or 10
        length = max(1, -(-span // number))
    if number > MOST_PERIODS:
        raise InputError(f"days={rule.days} gives {number} periods: use longer ones, or number=")
    since = seconds - start
    period = np.floor_divide(since, length)
    outside = (period < 0) | (period >= number)
    test = since % length >= math.ceil(length * (1 - rule.share) - 1e-9)
    return Cut(np.where(outside, -1, period), test & (rule.share > 0), number)


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
    return Cut(period, last_of_each(period, order, rule.share), number)


def last_of_each(period: Ints, order: NDArray[Any], share: float) -> Bools:
    """Return which rows are in the last `share` of the rows of their period; equal orders stay together."""
    test = np.zeros(len(period), dtype=bool)
    for t in np.unique(period):
        rows = np.flatnonzero(period == t)
        first = math.ceil(len(rows) * (1 - share) - 1e-9)
        if first < len(rows):
            test[rows] = order[rows] >= np.sort(order[rows])[first]
    return test


def by_text(texts: Sequence[str], share: float) -> Bools:
    """Return which texts test, by a hash: all rows with one text fall on the same side."""
    bound = round(share * 2**32)
    digests = (hashlib.blake2b(text.encode(), digest_size=4).digest() for text in texts)
    return np.fromiter((int.from_bytes(d, "little") < bound for d in digests), dtype=bool, count=len(texts))
