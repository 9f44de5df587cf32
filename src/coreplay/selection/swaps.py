"""Swap search: from a selection to one that no exchange of two samples improves, and on from there.

The value of a selection S is Σ_{i,j in S} K_ij + 2 Σ_{i in S} c_i. With r the sum of the rows of S without the diagonal
and u = diag(K) + 2c + 2r, exchanging i in S for j outside changes it by u_j − u_i − 2K_ij.

The descent takes for each i in turn the best j while that is negative: O(n) work an exchange. A tabu search then makes
the best exchange of all even when it is a loss, and forbids for a few moves to undo it, so that it climbs out of one
valley into the next; the best selection on the way is kept. For equal time this beat both random restarts and random
kicks, the more so the larger the pool.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from coreplay.selection.capped_simplex import minimise

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REST_INSIDE, REST_OUTSIDE = (
    2,
    7,
)  # moves for which a sample that came in, or went out, stays (up to twice as long)


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
    n = c.size
    u = np.empty(n)
    for k in range(n):
        u[k] = K[k, k] + 2.0 * c[k]
    for i in chosen:
        for k in range(n):
            u[k] += 2.0 * K[i, k]
        u[i] -= 2.0 * K[i, i]
    value = 0.0
    for i in chosen:
        value += 0.5 * (u[i] + K[i, i] + 2.0 * c[i])
    return u, value


@njit(cache=True)
def _descend(K: Floats, chosen: Ints, inside: NDArray[np.bool_], u: Floats) -> float:
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


@njit(cache=True)
def search(K: Floats, c: Floats, start: Ints, moves: int, rng: np.random.Generator) -> tuple[Ints, float]:
    """Descend from `start`, then make `moves` tabu moves; return the best selection met and its value."""
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
    for move in range(1, moves + 1):
        change, slot, partner = np.inf, -1, -1
        for s in range(budget):
            i = chosen[s]
            held = free_at[i] > move
            for j in range(n):
                delta = u[j] - u[i] - 2.0 * K[i, j]
                if delta < change and not inside[j]:
                    allowed = not held and free_at[j] <= move
                    if allowed or value + delta < least - 1e-12:
                        change, slot, partner = delta, s, j
        if slot < 0:  # all is forbidden: wait
            continue
        i = chosen[slot]
        _exchange(K, chosen, u, slot, partner)
        inside[i], inside[partner] = False, True
        value += change
        free_at[i] = move + REST_OUTSIDE + int(rng.random() * REST_OUTSIDE)
        free_at[partner] = move + REST_INSIDE + int(rng.random() * REST_INSIDE)
        if value < least - 1e-12:
            best, least = chosen.copy(), value
    return best, least


def top(x: Floats, budget: int) -> Ints:
    """Return the indices of the `budget` largest entries, the first of equal ones (the paper's top-N)."""
    return np.sort(np.argsort(-x, kind="stable")[:budget])


def scatter(n: int, budget: int, rng: np.random.Generator) -> Floats:
    """Return a start for the non-convex relaxation: the even spread N/n, shaken a little.

    The even spread itself may be stationary without being a minimum, for example if every gradient has its opposite.
    """
    return budget / n * (1.0 + 0.01 * rng.standard_normal(n))


def default_moves(n: int, budget: int) -> int:
    """Return how many tabu moves `polish` makes: 400, fewer once each takes longer than a tenth of a millisecond.

    >>> default_moves(50, 5), default_moves(5000, 500)
    (400, 16)
    """
    return int(min(400, 40_000_000 // (n * budget)))


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

    The zero-diagonal relaxation (from `start`, if given), its top-N, then the swap search.

    Returns
    -------
    (indices, value) : sorted indices of the selection and its value.

    Examples
    --------
    >>> K = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    >>> kept, value = polish(K, 2, np.random.default_rng(0))
    >>> kept.tolist(), round(value, 6)
    ([0, 2], 2.2)
    """
    c = np.zeros(len(gram)) if linear is None else linear
    start = scatter(len(gram), budget, rng) if start is None else start
    relaxed = minimise(gram, budget, linear=_with_diagonal(gram, linear), diagonal="zero", start=start, tolerance=1e-4)
    moves = default_moves(len(gram), budget) if moves is None else moves
    chosen, value = search(gram, c, top(relaxed.x, budget), moves, rng)
    return np.sort(chosen), float(value)


def _with_diagonal(gram: Floats, linear: Floats | None) -> Floats | None:
    """Return c + diag(K)/2, which stands for the diagonal on binary x; None where it is the same for all."""
    diagonal = gram.diagonal()
    if linear is None and np.ptp(diagonal) < 1e-9:
        return None
    return diagonal / 2 if linear is None else linear + diagonal / 2
