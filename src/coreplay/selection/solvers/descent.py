"""Descent to a stationary point of a quadratic over the capped simplex {0 <= x <= 1, Σx = N}, convex or not.

Conjugate gradients on the face of the free variables alternate with projected gradient steps that change the face. A
face is left when the gradient at the bounds outweighs the one inside (proportioning). Each move has an exact line
search, so the value never increases; directions of negative curvature are followed to the boundary.
"""

import numpy as np
from numba import njit

from coreplay.array_types import Floats


@njit(cache=True)
def project(v: Floats, budget: float) -> Floats:
    """Return the nearest point to `v` with entries in [0, 1] and sum `budget` (0 <= budget <= n).

    It is clip(v − τ, 0, 1) for the τ at which the sum is right: a root of a decreasing piecewise linear function, found
    by Newton's method, which is exact on the last piece, held inside a bracket.

    >>> project(np.array([2.0, 0.4, 0.2, -3.0]), 1.0).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    n = v.size
    low, high = v.min() - 1.0, v.max()
    tau = min(max((v.sum() - budget) / n, low), high)
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
    nearest: Floats = np.minimum(np.maximum(v - tau, 0.0), 1.0)
    return nearest


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


@njit(cache=True, fastmath=True)
def times(K: Floats, removed: Floats, d: Floats) -> Floats:
    """Return (K − diag(removed)) d; zeros of d are skipped when they are many.

    On one core and without BLAS, whose threads get in each other's way when two workers want the same cores.
    """
    n = d.size
    out = np.empty(n)
    support = 0
    for i in range(n):
        out[i] = -removed[i] * d[i]
        if d[i] != 0.0:
            support += 1
    if 4 * support < n:
        for j in range(n):
            if d[j] != 0.0:
                for i in range(n):
                    out[i] += d[j] * K[j, i]
    else:
        for i in range(n):
            total = 0.0
            for j in range(n):
                total += K[i, j] * d[j]
            out[i] += total
    return out


@njit(cache=True)
def _line_search(K: Floats, removed: Floats, x: Floats, g: Floats, target: Floats) -> tuple[bool, float]:
    """Move x and g in place to the best point between x and `target`; return whether it is downhill, and how curved."""
    n = x.size
    d = target - x
    slope, length = 0.0, 0.0
    for i in range(n):
        slope += g[i] * d[i]
        length += d[i] * d[i]
    if slope >= 0.0:
        return False, 0.0
    q = times(K, removed, d)
    curvature = 0.0
    for i in range(n):
        curvature += d[i] * q[i]
    t = min(1.0, -slope / curvature) if curvature > 0.0 else 1.0
    for i in range(n):
        x[i] = target[i] if t == 1.0 else x[i] + t * d[i]
        g[i] += t * q[i]
    return True, curvature / length


@njit(cache=True)
def _level(x: Floats, g: Floats) -> tuple[float, int]:
    """Return the mean gradient of the free variables (the multiplier of the sum) and how many are free."""
    total, free = 0.0, 0
    for i in range(x.size):
        if 0.0 < x[i] < 1.0:
            total += g[i]
            free += 1
    return total / max(free, 1), free


@njit(cache=True)
def _inside(x: Floats, g: Floats, p: Floats, beta: float, level: float) -> tuple[float, float]:
    """Update the search direction p; return the squared gradients inside the face and inwards from its bounds."""
    inside, bounds = 0.0, 0.0
    for i in range(x.size):
        r = level - g[i]
        if 0.0 < x[i] < 1.0:
            p[i] = r + beta * p[i]
            inside += r * r
        else:
            p[i] = 0.0
            if (x[i] <= 0.0 and r > 0.0) or (x[i] >= 1.0 and r < 0.0):
                bounds += r * r
    return inside, bounds


@njit(cache=True)
def _face(K: Floats, removed: Floats, x: Floats, g: Floats, budget: float, enough: float, most: int) -> int:
    """Conjugate gradients over the free variables, until they converge or leave the face; return the steps."""
    n = x.size
    p = np.zeros(n)
    level, free = _level(x, g)
    if free < 2:
        return 0
    rr, bounds = _inside(x, g, p, 0.0, level)
    for step in range(most):
        if rr <= max(enough, bounds):
            return step
        q = times(K, removed, p)
        curvature, length, room = 0.0, 0.0, np.inf
        for i in range(n):
            curvature += p[i] * q[i]
            length += p[i] * p[i]
            if p[i] > 0.0:
                room = min(room, (1.0 - x[i]) / p[i])
            elif p[i] < 0.0:
                room = min(room, -x[i] / p[i])
        bowl = curvature > 1e-14 * length
        t = rr / curvature if bowl else 8.0 * room
        if not bowl or t > room:  # leaves the face: follow the projection of the step, several bounds at once
            _line_search(K, removed, x, g, project(x + t * p, budget))
            return step + 2
        for i in range(n):
            x[i] += t * p[i]
            g[i] += t * q[i]
        level, free = _level(x, g)
        fresh = 0.0
        for i in range(n):
            if 0.0 < x[i] < 1.0:
                fresh += (level - g[i]) ** 2
        rr, bounds = _inside(x, g, p, fresh / rr, level)
    return most


@njit(cache=True)
def descend(K: Floats, removed: Floats, c: Floats, budget: int, start: Floats, tolerance: float, most: int) -> Floats:
    """Return a stationary point of xᵀ(K − diag(removed))x + 2cᵀx, starting from a point of the capped simplex."""
    x = start.copy()
    g = times(K, removed, x) + c
    length = 1.0
    steps = 0
    while steps < most:
        value = 0.0
        for i in range(x.size):
            value += x[i] * (g[i] + c[i])
        limit = 0.5 * max(tolerance * abs(value), 1e-3 * tolerance * budget)
        if gap(g, x, budget) <= limit:
            break
        steps += _face(K, removed, x, g, float(budget), 1e-3 * limit * limit / budget, most - steps)
        downhill, curvature = _line_search(K, removed, x, g, project(x - length * g, float(budget)))
        steps += 1
        if curvature > 0.0:
            length = 1.0 / curvature
        else:  # flat or bending down: go further next time; not even downhill: the step was too long for its rounding
            length *= 4.0 if downhill else 0.5
        if steps % 64 < 4:
            g = times(K, removed, x) + c  # sheds the rounding errors of many updates
    return x
