"""Programmes over selections with a fixed number of samples of each group: one group after another, the others given.

A group is its samples and how many of them are kept; together the groups are the whole pool. The value is
xᵀKx + 2cᵀx, as in `capped_simplex` and `swaps`, and with the x of all other groups fixed it is of the same form in the
x of one group. With a single group every function here does what its namesake does, to the last bit.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from coreplay.array_types import Floats, Ints
from coreplay.selection.solvers import capped_simplex, swaps

Groups: TypeAlias = Sequence[tuple[Ints, int]]
Solve: TypeAlias = Callable[[Floats, Floats, int, Floats], Floats]  # (gram, linear, budget, start) to x, of one group

SEARCHES = 5  # turns over all groups, at most
DESCENTS = 50
ENOUGH = 1e-7  # a relaxed turn that gains less than this share of the value is the last


def top(x: Floats, groups: Groups) -> Ints:
    """Return the indices of the largest entries of each group, sorted.

    >>> top(np.array([0.9, 0.8, 0.1, 0.2]), [(np.array([0, 1]), 1), (np.array([2, 3]), 1)]).tolist()
    [0, 3]
    """
    return np.sort(np.concatenate([rows[swaps.top(x[rows], many)] for rows, many in groups]))


def sample(x: Floats, groups: Groups, rng: np.random.Generator) -> Ints:
    """Return a random selection that has each sample with probability x, by systematic sampling in each group.

    >>> sample(np.array([1.0, 0.0, 0.5, 0.5]), [(np.arange(4), 2)], np.random.default_rng(0))[0]
    np.int64(0)
    """
    scores = x.copy()
    for rows, many in groups:
        ends = np.cumsum(x[rows])
        marks = (rng.random() + np.arange(many)) * (ends[-1] / many) if many else np.empty(0)
        taken = np.searchsorted(ends, marks, side="right")
        scores[rows[np.minimum(taken, len(rows) - 1)]] += 2.0
    return top(scores, groups)  # where rounding errors took a sample twice, the largest entry besides


def search(gram: Floats, linear: Floats, groups: Groups, start: Ints, moves: int, rng: np.random.Generator) -> Ints:
    """Return what the swap search finds from a selection that keeps the groups' numbers."""

    def solve(K: Floats, c: Floats, many: int, x: Floats) -> Floats:
        return indicator(swaps.search(K, c, np.flatnonzero(x), moves, rng)[0], len(c))

    if len(groups) == 1:
        return np.sort(swaps.search(gram, linear, start, moves, rng)[0])
    return np.flatnonzero(_in_turns(gram, linear, groups, indicator(start, len(gram)), solve, SEARCHES, 0.0))


def polish(gram: Floats, linear: Floats, groups: Groups, rng: np.random.Generator) -> Ints:
    """Return a selection with a small value, found from scratch."""

    def solve(K: Floats, c: Floats, many: int, x: Floats) -> Floats:
        return indicator(swaps.polish(K, many, rng, linear=c)[0], len(c))

    if len(groups) == 1:
        return swaps.polish(gram, groups[0][1], rng, linear=linear)[0]
    return np.flatnonzero(_in_turns(gram, linear, groups, np.zeros(len(gram)), solve, SEARCHES, 0.0))


def minimise(
    gram: Floats, linear: Floats, groups: Groups, *, start: Floats | None = None, diagonal: str = "keep"
) -> Floats:
    """Minimise over 0 <= x <= 1 with the groups' sums; with diagonal "keep" the programme is convex."""

    def solve(K: Floats, c: Floats, many: int, x: Floats | None) -> Floats:
        return capped_simplex.minimise(K, many, linear=c, diagonal=diagonal, start=x).x

    if len(groups) == 1:
        return solve(gram, linear, groups[0][1], start)
    if start is None:
        start = np.empty(len(gram))
        for rows, many in groups:
            start[rows] = many / len(rows)
    K = gram if diagonal == "keep" else gram - np.diag(gram.diagonal())
    return _in_turns(K, linear, groups, start, solve, DESCENTS, ENOUGH)


def indicator(chosen: Ints, size: int) -> Floats:
    """Return the x of a selection: 1 for the samples that were chosen, else 0.

    >>> indicator(np.array([0, 2]), 3).tolist()
    [1.0, 0.0, 1.0]
    """
    x = np.zeros(size)
    x[chosen] = 1.0
    return x


def _in_turns(
    gram: Floats, linear: Floats, groups: Groups, start: Floats, solve: Solve, turns: int, enough: float
) -> Floats:
    """Solve for each group in turn, given the others, while that lowers the value; return the best x."""
    x, open_groups = start.copy(), []
    for rows, many in groups:
        if 0 < many < len(rows):
            open_groups.append((rows, many, np.ascontiguousarray(gram[np.ix_(rows, rows)])))
        else:  # there is no choice
            x[rows] = float(many > 0)
    best, least = x.copy(), np.inf
    for _ in range(turns):
        for rows, many, own in open_groups:
            given = linear[rows] + gram[rows] @ x - own @ x[rows]
            x[rows] = solve(own, given, many, x[rows])
        value = float(x @ (gram @ x + 2.0 * linear))
        gained = least - value
        if gained > 0.0:
            best, least = x.copy(), value
        if len(open_groups) < 2 or gained <= max(1e-9, enough * abs(value)):
            break
    return best
