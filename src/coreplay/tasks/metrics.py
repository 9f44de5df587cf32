"""The paper's figures of merit (section 5.2), from sums of scores by (model after period t, test set of period t').

With S[t, t'] the sum of scores, W[t, t'] the sum of weights and f the task's `finish` (exp for perplexity, nothing for
accuracy):

    a[t, t'] = f(S[t, t'] / W[t, t'])                              figure of model t on test period t'
    A[t]     = f(Σ_t' S[t, t'] / Σ_t' W[t, t'])                    all-period figure: all test sets as one
    R        = A / A_no_replay − 1                                  relative change
    F[t, t'] = a[t, t'] − min_{s < t} a[s, t']                     forgetting; the other way round for accuracy
    F[t]     = mean over t' ≤ t of F[t, t']

Forgetting above 0 means that some earlier model did better on the same test set. The paper defines F[t, t'] on a test
set and shows it for "all periods" without saying how they are joined; the mean over the periods that the model has
been through, the newest included, is how we read it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PeriodMatrix:
    """Sums of scores and of weights, (models, test periods); row t is the model after period t.

    `geometric` says that the figure is the exponential of the mean score: perplexity.

    >>> perplexity = PeriodMatrix(np.log([[10.0, 40.0], [20.0, 10.0]]), np.ones((2, 2)))
    >>> perplexity.all_period().round(6).tolist(), perplexity.forgetting()[1].round(6).tolist()
    ([20.0, 14.142136], [10.0, -30.0])
    """

    totals: Floats
    weights: Floats
    geometric: bool = True
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        shape = np.shape(self.totals)
        if len(shape) != 2 or shape != np.shape(self.weights):
            raise InputError(f"totals and weights must be alike, (models, periods): {shape}, {np.shape(self.weights)}")

    def _finish(self, means: Floats) -> Floats:
        return np.exp(means) if self.geometric else means

    @cached_property
    def values(self) -> Floats:
        """The figure of each model on each test period; NaN where a test set is empty."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self._finish(np.where(self.weights > 0, self.totals / self.weights, np.nan))

    def all_period(self) -> Floats:
        """Return the figure of each model on all test sets taken as one."""
        return self._finish(self.totals.sum(axis=1) / self.weights.sum(axis=1))

    def period_mean(self) -> Floats:
        """Return the mean over test periods, each counted alike: geometric for perplexity."""
        if self.geometric:
            return np.asarray(np.exp(np.nanmean(np.log(self.values), axis=1)))
        return np.asarray(np.nanmean(self.values, axis=1))

    def forgetting(self) -> Floats:
        """Return the forgetting of each model on each test period; NaN in the first row, which has no earlier model."""
        return forgetting(self.values, lower_is_better=self.lower_is_better)

    def mean_forgetting(self) -> Floats:
        """Return the mean forgetting of each model over the periods that it has been through; NaN for the first."""
        lost = self.forgetting()
        means = [
            np.nanmean(row[: t + 1]) if t and np.isfinite(row[: t + 1]).any() else np.nan for t, row in enumerate(lost)
        ]
        return np.array(means)


def forgetting(values: ArrayLike, *, lower_is_better: bool = True) -> Floats:
    """Return how much worse each model is than the best earlier one on the same test set, per (model, test period).

    >>> forgetting([[5.0, 9.0], [7.0, 4.0], [6.0, 8.0]]).tolist()
    [[nan, nan], [2.0, -5.0], [1.0, 4.0]]
    >>> forgetting([[0.9, 0.2], [0.6, 0.8]], lower_is_better=False).round(6).tolist()
    [[nan, nan], [0.3, -0.6]]
    """
    given = np.asarray(values, dtype=np.float64)
    figures = given if lower_is_better else -given
    best = np.fmin.accumulate(figures, axis=0)
    lost = np.full(figures.shape, np.nan)
    lost[1:] = figures[1:] - best[:-1]
    return lost


def relative_change(value: ArrayLike, no_replay: ArrayLike) -> Floats:
    """Return the relative change to the run without replay: −0.2 is a perplexity 20 % lower.

    >>> relative_change([80.0, 100.0], 100.0).round(6).tolist()
    [-0.2, 0.0]
    """
    return np.asarray(value, dtype=np.float64) / np.asarray(no_replay, dtype=np.float64) - 1
