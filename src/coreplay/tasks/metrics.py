"""The paper's figures of merit (section 5.2), from sums of terms by (model after period t, test set of period t').

With S[t, t'] the sum of the metric's terms, W[t, t'] the sum of weights and f the metric's `finish` (exp for
perplexity, the identity for accuracy):

    a[t, t'] = f(S[t, t'] / W[t, t'])                              figure of model t on test period t'
    A[t]     = f(Σ_t' S[t, t'] / Σ_t' W[t, t'])                    all-period figure: all test sets as one
    R        = A / A_no_replay − 1                                  relative change
    F[t, t'] = a[t, t'] − min_{s < t} a[s, t']                     forgetting; the other way round for accuracy
    F[t]     = mean over t' < t of F[t, t']                        forgetting after period t
    A[t] − min_{s < t} A[s]                                        all-period forgetting, as the paper shows it

Forgetting above 0 means that some earlier model did better on the same test set. The newest period does not count in
F[t]: no earlier model was trained on it. Figures on different test sets are not subtracted from each other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TAKEN = (
    *("period", "test_period", "total", "weight", "missing"),  # other columns in the records of a run
    *("forgetting", "all_period_forgetting", "relative_change"),
)


def identity(mean: float) -> float:
    """Return the mean itself, as for accuracy and loss."""
    return mean


def exponential(mean: float) -> float:
    """Return the exponential of the mean: how perplexity is made of the mean loss."""
    return math.inf if mean > 700 else math.exp(mean)


@dataclass(frozen=True)
class Metric:
    """What a task measures: how the sums over a test set become a figure, and which figures are better.

    Parameters
    ----------
    name : str
        The name in tables and files, such as "accuracy".
    lower_is_better : bool
        Whether smaller figures are better.
    finish : function
        Makes the figure of the mean, Σ terms / Σ weights (see `Task.metric_terms`). By default the figure is the mean.
    compared_by_ratio : bool
        Whether reports compare strategies by the ratio of their figures instead of by the difference.

    Examples
    --------
    >>> Metric("perplexity", lower_is_better=True, finish=exponential).finish(0.0)
    1.0
    """

    name: str
    lower_is_better: bool
    finish: Callable[[float], float] = identity
    compared_by_ratio: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or self.name in TAKEN:
            others = f"{', '.join(TAKEN)}, which stand beside it in the records of a run"
            raise InputError(f"the name of a metric must be a text other than {others}: got {self.name!r}")

    def figure(self, mean: float) -> float:
        """Return the figure of a mean; NaN, the mean of an empty test set, stays NaN."""
        return mean if math.isnan(mean) else self.finish(mean)


@dataclass(frozen=True)
class PeriodMatrix:
    """The figures of a run: row t is the model after period t, column t' the test set of period t'.

    Parameters
    ----------
    values : (models, periods) array
        The figure of each model on each test set; NaN where a test set is empty.
    all_period : (models,) array
        The figure of each model on all test sets taken as one.
    period_mean : (models,) array
        The figure of each model with all test sets counted alike, whatever their size.
    lower_is_better : bool
        Whether smaller figures are better.
    test_sets : (models, periods) array of int
        Equal numbers in a column mean that the figures were measured on the same samples. 0 is the complete test set.

    Examples
    --------
    >>> accuracy = Metric("accuracy", lower_is_better=False)
    >>> matrix = PeriodMatrix.of_sums([[9.0, 1.0], [6.0, 8.0]], [[10.0, 10.0], [10.0, 10.0]], accuracy)
    >>> matrix.all_period.tolist(), matrix.forgetting()[1].round(6).tolist()
    ([0.5, 0.7], [0.3, -0.7])
    >>> matrix.mean_forgetting()[1].round(6).item(), matrix.all_period_forgetting()[1].round(6).item()
    (0.3, -0.2)
    """

    values: Floats
    all_period: Floats
    period_mean: Floats
    lower_is_better: bool
    test_sets: Ints

    @classmethod
    def of_sums(
        cls, totals: ArrayLike, weights: ArrayLike, metric: Metric, test_sets: ArrayLike | None = None
    ) -> "PeriodMatrix":
        """Make the figures of sums of terms and of weights, each (models, periods)."""
        scores, counts = np.asarray(totals, dtype=np.float64), np.asarray(weights, dtype=np.float64)
        if scores.ndim != 2 or scores.shape != counts.shape:
            raise InputError(f"totals and weights must be alike, (models, periods): {scores.shape}, {counts.shape}")
        sets = np.zeros(scores.shape, dtype=np.int64) if test_sets is None else np.asarray(test_sets, dtype=np.int64)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(counts > 0, scores / counts, np.nan)
        finish = np.vectorize(metric.figure, otypes=[np.float64])
        together, alike = scores.sum(axis=1) / counts.sum(axis=1), np.nanmean(means, axis=1)
        return cls(finish(means), finish(together), finish(alike), metric.lower_is_better, sets)

    def forgetting(self) -> Floats:
        """Return the forgetting of each model on each test period; NaN where no earlier model has the same test set."""
        return forgetting(self.values, lower_is_better=self.lower_is_better, test_sets=self.test_sets)

    def mean_forgetting(self) -> Floats:
        """Return the forgetting after each period: the mean over the periods before it; NaN after the first."""
        lost = [row[:t][~np.isnan(row[:t])] for t, row in enumerate(self.forgetting())]  # infinite is forgotten too
        return np.array([row.mean() if row.size else np.nan for row in lost])

    def all_period_forgetting(self) -> Floats:
        """Return how much worse each model is than the best earlier one on all test sets taken as one."""
        sets = np.unique(self.test_sets, axis=0, return_inverse=True)[1].reshape(-1, 1)
        return forgetting(self.all_period[:, None], lower_is_better=self.lower_is_better, test_sets=sets)[:, 0]


def forgetting(values: ArrayLike, *, lower_is_better: bool = True, test_sets: ArrayLike | None = None) -> Floats:
    """Return how much worse each model is than the best earlier one on the same test set, per (model, test period).

    >>> forgetting([[5.0, 9.0], [7.0, 4.0], [6.0, 8.0]]).tolist()
    [[nan, nan], [2.0, -5.0], [1.0, 4.0]]
    >>> forgetting([[0.9, 0.2], [0.6, 0.8]], lower_is_better=False).round(6).tolist()
    [[nan, nan], [0.3, -0.6]]
    """
    given = np.asarray(values, dtype=np.float64)
    figures = given if lower_is_better else -given
    sets = np.zeros(figures.shape, dtype=np.int64) if test_sets is None else np.asarray(test_sets)
    lost = np.full(figures.shape, np.nan)
    for t in range(1, len(figures)):
        earlier = np.where(sets[:t] == sets[t], figures[:t], np.nan)
        lost[t] = figures[t] - np.fmin.reduce(earlier, axis=0)
    return lost


def relative_change(value: ArrayLike, no_replay: ArrayLike) -> Floats:
    """Return the relative change to the run without replay: −0.2 is a perplexity 20 % lower.

    >>> relative_change([80.0, 100.0], 100.0).round(6).tolist()
    [-0.2, 0.0]
    """
    return np.asarray(value, dtype=np.float64) / np.asarray(no_replay, dtype=np.float64) - 1
