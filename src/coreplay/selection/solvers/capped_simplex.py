"""Quadratic programmes over the capped simplex {0 <= x <= 1, Σx = N}.

Every selector and both coordination methods minimise over this set

    f(x) = xᵀKx + 2cᵀx                                                    (equations 4, 5 and 8)

with K a gram, its diagonal kept (the convex relaxation) or zeroed (the paper's non-convex one), and c a linear term
(−Gᵀh in coordination, the fixed variables in branch and bound). Every result carries its Frank-Wolfe gap: with
g = Kx + c,

    f(x) − f* <= 2 (gᵀx − min over the set of gᵀy)     if K is positive semidefinite,

where the minimum on the right is the sum of the N smallest entries of g. So a convex result comes with its own proof;
for a non-convex one the gap says how far it is from a first-order stationary point.

The non-convex programme is solved by `descent`, the convex one by proximal primal-dual active sets: with the variables
at 0, at 1 and free known, the optimum is one linear system. Guess the three sets, solve, move what left its range to
its bound and free what its multiplier pulls inwards; repeat until nothing moves. It takes two to six solves when K is
well conditioned and may cycle when it is not, so it is done on f(x) + ρ‖x − y‖², whose minimiser is the next y. A small
ρ costs one extra solve; it grows when the sets cycle and falls when they settle, and the iteration over y converges to
the minimiser of f for any K that is positive semidefinite.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from coreplay.array_types import Floats
from coreplay.errors import unknown
from coreplay.selection.solvers.descent import descend, gap, project, times

Marks = NDArray[np.int8]

DESCENT_FIRST = 400


@njit(cache=True, fastmath=True)
def _factor(A: Floats) -> bool:
    """Put the Cholesky factor into the lower triangle of A; return whether A is positive definite.

    Compiled here, four rows at a time: for the small systems of a pool a call of LAPACK costs more than its work, and
    two workers never fight over the threads of one BLAS.
    """
    m = A.shape[0]
    for j in range(m):
        pivot = A[j, j]
        for k in range(j):
            pivot -= A[j, k] * A[j, k]
        if not pivot > 0.0:
            return False
        root = np.sqrt(pivot)
        A[j, j] = root
        i = j + 1
        while i + 3 < m:
            t0, t1, t2, t3 = A[i, j], A[i + 1, j], A[i + 2, j], A[i + 3, j]
            for k in range(j):
                shared = A[j, k]
                t0 -= A[i, k] * shared
                t1 -= A[i + 1, k] * shared
                t2 -= A[i + 2, k] * shared
                t3 -= A[i + 3, k] * shared
            A[i, j], A[i + 1, j], A[i + 2, j], A[i + 3, j] = t0 / root, t1 / root, t2 / root, t3 / root
            i += 4
        while i < m:
            t0 = A[i, j]
            for k in range(j):
                t0 -= A[i, k] * A[j, k]
            A[i, j] = t0 / root
            i += 1
    return True


@njit(cache=True)
def _substitute(L: Floats, b: Floats) -> None:
    """Solve L Lᵀ x = b in place, for the factor in the lower triangle of L."""
    m = b.size
    for i in range(m):
        total = b[i]
        for j in range(i):
            total -= L[i, j] * b[j]
        b[i] = total / L[i, i]
    for i in range(m - 1, -1, -1):
        b[i] /= L[i, i]
        for j in range(i):
            b[j] -= L[i, j] * b[i]


@njit(cache=True)
def _corner(K: Floats, c: Floats, rho: float, y: Floats, marks: Marks, budget: int) -> tuple[Floats, bool]:
    """Return the corner where nothing is free and True if it is the optimum, else y and False."""
    if marks.sum() != budget:
        return y, False
    x = marks.astype(np.float64)
    g = times(K, np.zeros(x.size), x) + c + rho * (x - y)
    low, high = np.inf, -np.inf
    for i in range(x.size):
        if marks[i] == 0:
            low = min(low, g[i])
        else:
            high = max(high, g[i])
    return (x, True) if high <= low else (y, False)


@njit(cache=True)
def _settle(K: Floats, c: Floats, rho: float, y: Floats, marks: Marks, budget: int, most: int) -> tuple[Floats, bool]:
    """Solve with marks (0 at zero, 1 at one, 2 free), updated in place; return x and whether they settled."""
    n = c.size
    x = np.empty(n)
    g = np.empty(n)
    for _ in range(most):
        free = np.flatnonzero(marks == 2)
        ones = np.flatnonzero(marks == 1)
        m = free.size
        if m == 0:
            return _corner(K, c, rho, y, marks, budget)
        A = np.empty((m, m))
        b = np.empty(m)
        e = np.ones(m)
        for k in range(m):
            i = free[k]
            for j in range(m):
                A[k, j] = K[i, free[j]]
            A[k, k] += rho
            total = c[i] - rho * y[i]
            for one in ones:
                total += K[i, one]
            b[k] = total
        if not _factor(A):
            return y, False
        _substitute(A, b)
        _substitute(A, e)
        level = (budget - ones.size + b.sum()) / e.sum()
        for i in range(n):
            x[i] = 1.0 if marks[i] == 1 else 0.0
            g[i] = c[i] + rho * (x[i] - y[i])
        for k in range(m):
            x[free[k]] = level * e[k] - b[k]
        for j in range(n):
            if x[j] != 0.0:
                for i in range(n):
                    g[i] += x[j] * K[j, i]
        moved = False
        for i in range(n):
            mark = marks[i]
            if mark == 2:
                mark = 0 if x[i] < 0.0 else (1 if x[i] > 1.0 else 2)
            elif (mark == 0 and g[i] < level) or (mark == 1 and g[i] > level):
                mark = 2
            moved = moved or mark != marks[i]
            marks[i] = mark
        if not moved:
            return x, True
    return x, False


@njit(cache=True)
def _mark(x: Floats) -> Marks:
    """Return 0 for the entries at zero, 1 at one, 2 between; in a corner everything is set free to get out of it."""
    marks = np.full(x.size, 2, dtype=np.int8)
    if ((x > 0.0) & (x < 1.0)).any():
        marks[x <= 0.0] = 0
        marks[x >= 1.0] = 1
    return marks


@njit(cache=True)
def solve_convex(K: Floats, c: Floats, budget: int, start: Floats, tolerance: float) -> Floats:
    """Return the minimiser of xᵀKx + 2cᵀx over the capped simplex, from a feasible start."""
    n = c.size
    nothing = np.zeros(n)
    x = start
    if n >= DESCENT_FIRST:  # a step costs less than a hundredth of a factorisation, and finds most of the sets
        x = descend(K, nothing, c, budget, x, tolerance, n // 8)
    scale = max(np.diag(K).max(), 0.0)
    if scale == 0.0:  # all gradients are zero: a linear programme, in which only c has a scale
        scale = 1.0
    best, least = x, np.inf
    marks = _mark(x)
    rho, lowest, last, settled = 1e-9, 1e-10, np.inf, True
    for _ in range(100):
        if settled:
            g = times(K, nothing, x) + c
            value = np.dot(x, g + c)
            if value < least:
                best, least = x, value
            now = 2.0 * gap(g, x, budget)
            if now <= max(tolerance * abs(value), 1e-3 * tolerance * budget):
                break
            if rho < 1e-6 and now > 0.5 * last:  # rounding has the upper hand, in a system as good as singular
                lowest = rho * 100.0
            rho = max(rho * 0.1, lowest)
            last = now
        else:
            rho = min(max(rho * 100.0, 1e-3), 1e5)
            marks = _mark(x)
        y, settled = _settle(K, c, rho * scale, x, marks, budget, 8)
        if settled:
            x = project(y, float(budget))
    return best


@dataclass(frozen=True)
class Minimum:
    """What `minimise` found: the point, its value, and the gap that bounds (convex: proves) its error."""

    x: Floats
    value: float
    gap: float


def minimise(
    gram: Floats,
    budget: int,
    *,
    linear: Floats | None = None,
    diagonal: str = "keep",
    start: Floats | None = None,
    tolerance: float = 1e-7,
) -> Minimum:
    """Minimise xᵀKx + 2cᵀx over the capped simplex.

    Parameters
    ----------
    gram : (n, n) array
        K, symmetric positive semidefinite.
    budget : int
        N, from 1 to n.
    linear : (n,) array, optional
        c; zero if not given.
    diagonal : "keep" or "zero"
        Whether the diagonal of K counts. With "zero" the programme is not convex.
    start : (n,) array, optional
        Where to start, the even spread N/n if not given. It saves time for a convex programme and decides which
        stationary point is found for a non-convex one.
    tolerance : float
        Stop when the gap is at most this share of the value, or a thousandth of it times N for a value near zero.

    Examples
    --------
    >>> minimise(np.diag([1.0, 1.0, 2.0]), 1).x.round(3).tolist()
    [0.4, 0.4, 0.2]
    >>> minimise(np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]), 2, diagonal="zero").x.tolist()
    [1.0, 0.0, 1.0]
    """
    if diagonal not in ("keep", "zero"):
        raise unknown("diagonal", diagonal, ["keep", "zero"])
    n = len(gram)
    K = np.ascontiguousarray(gram, dtype=np.float64)
    c = np.zeros(n) if linear is None else np.ascontiguousarray(linear, dtype=np.float64)
    x = np.full(n, budget / n) if start is None else project(np.ascontiguousarray(start), float(budget))
    if diagonal == "keep":
        x = solve_convex(K, c, budget, x, tolerance)
        g = K @ x + c
    else:
        removed = K.diagonal().copy()
        x = descend(K, removed, c, budget, x, tolerance, 5000)
        g = K @ x - removed * x + c
    return Minimum(x, float(x @ (g + c)), 2.0 * max(gap(g, x, budget), 0.0))
