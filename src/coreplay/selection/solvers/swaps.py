"""Swap search: from a selection to one that no exchange of two samples improves, and on from there.

The value of a selection S is Σ_{i,j in S} K_ij + 2 Σ_{i in S} c_i. With r the sum of the rows of S without the diagonal
and u = diag(K) + 2c + 2r, exchanging i in S for j outside changes it by u_j − u_i − 2K_ij.

The descent takes for each i in turn the best j while that is negative: O(n) work an exchange. A tabu search then makes
the best exchange of all even when it is a loss, and forbids for a few moves to undo it, so that it climbs out of one
valley into the next; the best selection on the way is kept.
"""

import numpy as np
from numba import njit

from coreplay.array_types import Bools, Floats, Ints
from coreplay.selection.solvers.descent import descend, project

BLOCKED = 1e300
REST_INSIDE, REST_OUTSIDE = (2, 7)  # moves for which a sample that came in, or went out, stays (up to twice as long)


@njit(cache=True)
def _exchange(K: Floats, chosen: Ints, u: Floats, slot: int, j: int) -> None:
    """Put j in the place of chosen[slot] and update u."""
    i = chosen[slot]
    for k in range(u.size):
        u[k] += 2.0 * (K[j, k] - K[i, k])
    u[j] -= 2.0 * K[j, j]
    u[i] += 2.0 * K[i, i]
    chosen[slot] = j


@njit(cache=True)
def _prices(K: Floats, c: Floats, chosen: Ints) -> tuple[Floats, float]:
    """Return u as above and the value of the selection."""
    u = np.diag(K) + 2.0 * c
    for i in chosen:
        for k in range(u.size):
            u[k] += 2.0 * K[i, k]
        u[i] -= 2.0 * K[i, i]
    value = 0.0
    for i in chosen:
        value += 0.5 * (u[i] + K[i, i] + 2.0 * c[i])
    return u, value


@njit(cache=True)
def _descend(K: Floats, chosen: Ints, inside: Bools, u: Floats) -> float:
    """Exchange samples in place until no exchange lowers the value; return by how much it fell."""
    n = u.size
    budget = chosen.size
    gained = 0.0
    slot, still = 0, 0
    while still < budget:
        i = chosen[slot]
        best, partner = np.inf, -1
        for j in range(n):
            price = u[j] - 2.0 * K[i, j]
            if price < best and not inside[j]:
                best, partner = price, j
        change = best - u[i]
        if change < -1e-12:
            _exchange(K, chosen, u, slot, partner)
            inside[i], inside[partner] = False, True
            gained -= change
            still = 0
        else:
            still += 1
        slot = (slot + 1) % budget
    return gained


@njit(cache=True, fastmath=True)
def _cheapest(K: Floats, asks: Floats, i: int) -> float:
    """Return the least ask_j − 2K_ij: a plain minimum, which vectorises."""
    least = BLOCKED
    for j in range(asks.size):
        least = min(least, asks[j] - 2.0 * K[i, j])
    return least


@njit(cache=True)
def search(K: Floats, c: Floats, start: Ints, moves: int, rng: np.random.Generator) -> tuple[Ints, float]:
    """Descend from `start`, make `moves` tabu moves, descend from the best; return that selection and its value."""
    n, budget = c.size, start.size
    chosen = start.copy()
    inside = np.zeros(n, dtype=np.bool_)
    for i in chosen:
        inside[i] = True
    u, value = _prices(K, c, chosen)
    if budget == n:
        return chosen, value
    value -= _descend(K, chosen, inside, u)
    best, least = chosen.copy(), value
    free_at = np.zeros(n, dtype=np.int64)
    asks = np.empty(n)
    for move in range(1, moves + 1):
        for j in range(n):
            asks[j] = BLOCKED if inside[j] or free_at[j] > move else u[j]
        change, slot = BLOCKED / 2, -1
        for s in range(budget):
            i = chosen[s]
            if free_at[i] <= move:
                delta = _cheapest(K, asks, i) - u[i]
                if delta < change:
                    change, slot = delta, s
        if slot < 0:  # all is forbidden: wait
            continue
        i = chosen[slot]
        partner, price = -1, BLOCKED
        for j in range(n):
            if asks[j] - 2.0 * K[i, j] < price:
                partner, price = j, asks[j] - 2.0 * K[i, j]
        _exchange(K, chosen, u, slot, partner)
        inside[i], inside[partner] = False, True
        value += change
        free_at[i] = move + REST_OUTSIDE + int(rng.random() * REST_OUTSIDE)
        free_at[partner] = move + REST_INSIDE + int(rng.random() * REST_INSIDE)
        if value < least - 1e-12:
            best, least = chosen.copy(), value
    inside[:] = False
    for i in best:
        inside[i] = True
    u, least = _prices(K, c, best)
    least -= _descend(K, best, inside, u)
    return best, least


@njit(cache=True)
def _polish(
    K: Floats, c: Floats, removed: Floats, start: Floats, budget: int, moves: int, rng: np.random.Generator
) -> tuple[Ints, float]:
    """Relax with the diagonal as a linear term (on binary x the two are the same), take the top N, search.

    The relaxation is only where the search starts: to a gap of a tenth it takes half the time and ends as well.
    """
    x = descend(K, removed, c + 0.5 * removed, budget, project(start, float(budget)), 0.1, 5000)
    return search(K, c, np.argsort(-x, kind="mergesort")[:budget], moves, rng)


def top(x: Floats, budget: int) -> Ints:
    """Return the indices of the `budget` largest entries, the first of equal ones (the paper's top-N)."""
    return np.sort(np.argsort(-x, kind="stable")[:budget])


def scatter(n: int, budget: int, rng: np.random.Generator) -> Floats:
    """Return a start for the non-convex relaxation: the even spread N/n, shaken a little.

    The even spread itself may be stationary without being a minimum, for example if every gradient has its opposite.
    """
    return budget / n * (1.0 + 0.01 * rng.standard_normal(n))


def default_moves(n: int, budget: int) -> int:
    """Return how many tabu moves `polish` makes: 200, fewer in a pool so large that each takes milliseconds.

    >>> default_moves(50, 5), default_moves(5000, 500)
    (200, 40)
    """
    return int(min(200, 100_000_000 // (n * budget)))


def polish(
    gram: Floats,
    budget: int,
    rng: np.random.Generator,
    *,
    linear: Floats | None = None,
    start: Floats | None = None,
    moves: int | None = None,
) -> tuple[Ints, float]:
    """Minimise Σ_{i,j in S} K_ij + 2 Σ_{i in S} c_i over selections S of `budget` samples, approximately.

    The zero-diagonal relaxation (from `start`, if given), its top-N, then the swap search; `gram` and `linear` must be
    contiguous arrays of float64. Returns the sorted indices of the selection and its value.

    >>> K = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    >>> kept, value = polish(K, 2, np.random.default_rng(0))
    >>> kept.tolist(), round(value, 6)
    ([0, 2], 2.2)
    """
    n = len(gram)
    c = np.zeros(n) if linear is None else linear
    start = scatter(n, budget, rng) if start is None else start
    moves = default_moves(n, budget) if moves is None else moves
    chosen, value = _polish(gram, c, gram.diagonal().copy(), start, budget, moves, rng)
    return np.sort(chosen), float(value)
