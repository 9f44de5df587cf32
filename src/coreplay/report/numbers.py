"""The numbers of a report: spread over seeds, and differences of strategies seed by seed.

Strategies are compared on the same seed (and sample of clients), because what a seed decides is the same for all of
them and cancels: with d_s the difference at seed s, the interval is mean(d) ± t(0.975, n − 1) · sd(d) / √n.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """Values of one thing, one a seed.

    >>> Spread.of([1.0, 3.0]).mean, round(Spread.of([1.0, 3.0]).sd, 3), Spread.of([1.0]).sd
    (2.0, 1.414, None)
    """

    values: tuple[float, ...]

    @staticmethod
    def of(values: Iterable[float]) -> "Spread":
        """Keep the values that are numbers."""
        return Spread(tuple(float(value) for value in values if value is not None and math.isfinite(value)))

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Their mean; NaN of nothing."""
        return fmean(self.values) if self.values else math.nan

    @property
    def sd(self) -> float | None:
        """Their standard deviation (n − 1); None of fewer than two."""
        return stdev(self.values) if self.n > 1 else None


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds with its interval, and what that means in a word."""

    mean: float
    low: float | None
    high: float | None
    n: int
    word: str


def difference(
    ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float], *, ratio: bool, lower_is_better: bool
) -> Difference | None:
    """Compare two strategies on the seeds that both have; None if there is none.

    With `ratio`, differences are of logarithms, and shown as relative changes: −0.1 is 10 % lower.

    >>> difference({0: 80.0, 1: 90.0}, {0: 100.0, 1: 100.0}, ratio=True, lower_is_better=True).word
    'unclear'
    >>> difference({0: 80.0, 1: 81.0}, {0: 100.0, 1: 100.0}, ratio=True, lower_is_better=True).word
    'better'
    """
    from scipy.stats import t

    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    pairs = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b) and (not ratio or min(a, b) > 0)]
    if not pairs:
        return None
    spread = Spread(tuple(math.log(a / b) if ratio else a - b for a, b in pairs))
    back = _change if ratio else float
    if spread.sd is None:
        return Difference(back(spread.mean), None, None, 1, "unclear")
    half = float(t.ppf((1 + LEVEL) / 2, spread.n - 1)) * spread.sd / math.sqrt(spread.n)
    low, high = spread.mean - half, spread.mean + half
    word = "unclear"
    if low > 0 or high < 0:
        word = "better" if (high < 0) == lower_is_better else "worse"
    return Difference(back(spread.mean), back(low), back(high), spread.n, word)


def _change(log: float) -> float:
    """Return a relative change from a logarithm; two seeds far apart make intervals that no number can hold."""
    return math.expm1(min(log, 700.0))
