"""GSS's integer quadratic programme: branch and bound on the convex relaxation, stopped after a number of nodes.

A node fixes some x at 0 or 1 and relaxes the others; it is solved over the capped simplex, gives a lower bound and, by
its N largest entries, a selection. It branches on the entry nearest to 1/2, the nearer integer first, depth first. The
original ran MIOSQP with 1000 nodes and took entries within 1e-3 of an integer as integer, as here.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from coreplay.selection._active_set import solve_convex
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool, whole_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INTEGRALITY = 1e-3


@njit(cache=True)
def _relax(K: Floats, fixed: NDArray[np.int8], budget: int) -> tuple[Floats, float]:
    """Return the relaxed optimum with the entries of `fixed` that are not -1 held, and a bound on its value."""
    n = fixed.size
    free = np.flatnonzero(fixed == -1)
    m = free.size
    ones = budget
    x = np.zeros(n)
    linear = np.zeros(m)
    sub = np.empty((m, m))
    for i in range(n):
        if fixed[i] == 1:
            x[i] = 1.0
            ones -= 1
    for a in range(m):
        for b in range(m):
            sub[a, b] = K[free[a], free[b]]
        for i in range(n):
            if fixed[i] == 1:
                linear[a] += K[free[a], i]
    if ones > 0:
        x[free] = solve_convex(sub, linear, ones, np.full(m, ones / m), 1e-4)
    return x, np.dot(x, np.dot(K, x)) * (1.0 - 1e-4)


@njit(cache=True)
def _value(K: Floats, kept: Ints) -> float:
    total = 0.0
    for i in kept:
        for j in kept:
            total += K[i, j]
    return total


@njit(cache=True)
def _branch(K: Floats, budget: int, nodes: int) -> Ints:
    n = K.shape[0]
    stack = np.full((n + 2, n), -1, dtype=np.int8)
    height = 1
    best, least = np.arange(budget), np.inf
    for _ in range(nodes):
        if height == 0:
            break
        height -= 1
        fixed = stack[height].copy()
        ones = (fixed == 1).sum()
        if ones > budget or ones + (fixed == -1).sum() < budget:
            continue
        x, bound = _relax(K, fixed, budget)
        if bound >= least - 1e-9:
            continue
        kept = np.argsort(-x)[:budget]
        value = _value(K, kept)
        if value < least:
            best, least = kept, value
        branch, middle = -1, INTEGRALITY
        for i in range(n):
            fraction = min(x[i], 1.0 - x[i])
            if fixed[i] == -1 and fraction > middle:
                branch, middle = i, fraction
        if branch >= 0:
            near = 1 if x[branch] >= 0.5 else 0
            for last in range(2):  # pushed last, tried first
                stack[height] = fixed
                stack[height, branch] = near if last == 1 else 1 - near
                height += 1
    return best


@selector("gss_iqp")
def gss_iqp(pool: Pool, budget: int, rng: np.random.Generator, *, nodes: int = 1000) -> Ints:
    """Solve the integer quadratic programme by branch and bound on the relaxation, up to nodes= nodes."""
    return np.asarray(_branch(pool.gram, budget, whole_number(nodes, "nodes", least=1)))
