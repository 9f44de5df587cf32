"""The capped simplex {0 <= x <= 1, Σx = N}: projection onto it, and quadratic programmes over it.

Every selector and both coordination methods minimise over this set

    f(x) = xᵀKx + 2cᵀx                                                    (equations 4, 5 and 8)

with K a gram, its diagonal kept (the convex relaxation) or zeroed (the paper's non-convex one), and c a linear term
(−Gᵀh in coordination, the fixed variables in branch and bound). The convex programme is solved by active sets
(`_active_set`), the non-convex one by a descent to a stationary point (`_descent`). Either result carries its
Frank-Wolfe gap: with g = Kx + c,

    f(x) − f* <= 2 (gᵀx − min over the set of gᵀy)     if K is positive semidefinite,

where the minimum on the right is the sum of the N smallest entries of g. So a convex result comes with its own proof;
for a non-convex one the gap says how far it is from a first-order stationary point.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import unknown
from coreplay.selection._active_set import solve_convex
from coreplay.selection._descent import descend
from coreplay.selection._projection import gap, project

__all__ = ["Minimum", "minimise", "project"]

Floats = NDArray[np.float64]


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
