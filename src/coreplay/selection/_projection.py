"""Compiled pieces that both solvers over the capped simplex need: the projection and the Frank-Wolfe gap."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@njit(cache=True)
def project(v: Floats, budget: float) -> Floats:
    """Return the nearest point to `v` with entries in [0, 1] and sum `budget` (0 <= budget <= n).

    It is clip(v − τ, 0, 1) for the τ at which the sum is right: a root of a decreasing piecewise linear function, found
    by Newton's method, which is exact on the last piece, held inside a bracket.

    >>> project(np.array([2.0, 0.4, 0.2, -3.0]), 1.0).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    n = v.size
    total = v[0]
    low, high = v[0], v[0]
    for i in range(1, n):
        total += v[i]
        low = min(low, v[i])
        high = max(high, v[i])
    low -= 1.0
    tau = min(max((total - budget) / n, low), high)
    for _ in range(100):
        total, free = 0.0, 0
        for i in range(n):
            t = v[i] - tau
            if t >= 1.0:
                total += 1.0
            elif t > 0.0:
                total += t
                free += 1
        excess = total - budget
        if abs(excess) <= 1e-14 * n or high - low <= 1e-15 * (abs(low) + abs(high)):
            break
        if excess > 0.0:
            low = tau
        else:
            high = tau
        newton = tau + excess / free if free > 0 else low
        tau = newton if low < newton < high else 0.5 * (low + high)
    out = np.empty(n)
    for i in range(n):
        out[i] = min(max(v[i] - tau, 0.0), 1.0)
    return out


@njit(cache=True)
def gap(g: Floats, x: Floats, budget: int) -> float:
    """Return gᵀx minus the least gᵀy over the capped simplex: zero just where x is stationary."""
    total = 0.0
    smallest = np.sort(g)
    for i in range(g.size):
        total += g[i] * x[i]
    for i in range(budget):
        total -= smallest[i]
    return total
