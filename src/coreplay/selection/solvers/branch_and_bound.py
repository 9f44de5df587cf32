"""The best selection of all, with a proof: reverse search over subsets, cut off by averages.

Write o(S) = Σ_{i≠j in S} K_ij. The subsets of k samples of a selection X of N samples have on average

    o = o(X) k(k−1) / (N(N−1)),

so taking away the worst sample of X (whose similarities to the others sum highest), then the worst of the rest,
and so on, leads down a chain of subsets that are all at or below that average. Read upwards: grow sets from pairs, only
by samples that are the worst of the grown set, which reaches every selection along one path alone, and cut off a set S
of k samples as soon as o(S) N(N−1) / (k(k−1)) shows that nothing above it can beat the best selection known. The last
two samples are found by a plain scan over pairs. What is still open when time runs out bounds the optimum likewise.

Against the usual bound from row minima (Gilmore and Lawler) this is tighter where it matters, near the root, because an
average knows that the best partners of a sample tend to resemble each other.
"""

import time
from dataclasses import dataclass

import numpy as np
from numba import njit

from coreplay.array_types import Bools, Floats, Ints
from coreplay.selection.solvers.capped_simplex import minimise
from coreplay.selection.solvers.swaps import default_moves, search

SLACK = 1e-12  # of a comparison: sums that differ by less are equal
NODES_PER_SLICE = 20_000  # between two looks at the clock


@dataclass(frozen=True)
class Optimum:
    """The best selection found, its value, a proven lower bound on any selection's value, and the sets visited."""

    indices: Ints
    value: float
    bound: float
    nodes: int

    @property
    def proved(self) -> bool:
        """Whether the selection is proven to be optimal."""
        return self.bound >= self.value

    @property
    def gap(self) -> float:
        """How much of the value may be left to gain, as a share of it: 0 when proved."""
        return max(self.value - self.bound, 0.0) / max(abs(self.value), 1e-12)


@njit(cache=True)
def _worst(K: Floats, sums: Floats, path: Ints, k: int, j: int) -> bool:
    """Return whether j is the worst sample of the set of k on the path with j added; of equals, the last one is.

    Sums along different paths differ by rounding. So that no set is lost, both are taken where that decides.
    """
    own = sums[k, j]
    highest, close = own, False
    for t in range(k):
        i = path[t]
        value = sums[k, i] + K[i, j]
        if value > own + 1.01 * SLACK:
            return False
        highest = max(highest, value)
        close |= i > j and value >= own - 1.01 * SLACK
    if not close:
        return True
    for part in (0.99, 1.01):
        low = highest - part * SLACK
        last = own >= low
        for t in range(k):
            i = path[t]
            last &= not (i > j and sums[k, i] + K[i, j] >= low)
        if last:
            return True
    return False


@njit(cache=True)
def _grow(K: Floats, sums: Floats, path: Ints, inside: Bools, k: int, off: float, limit: float, todo: Ints) -> int:
    """List in todo[k] the samples that keep o at or below `limit` and are the worst of the set of k with them."""
    count = 0
    for j in range(path[0] + 1 if k == 1 else 0, K.shape[0]):  # of a pair, the second one counts as the worst
        if not inside[j] and off + 2.0 * sums[k, j] <= limit and _worst(K, sums, path, k, j):
            todo[k, count] = j
            count += 1
    return count


@njit(cache=True, fastmath=True)
def _add(K: Floats, sums: Floats, k: int, j: int) -> None:
    """Put the sums of similarities to a set of k samples, grown by j, into row k + 1."""
    for i in range(K.shape[0]):
        sums[k + 1, i] = sums[k, i] + K[j, i]
    sums[k + 1, j] -= K[j, j]


@njit(cache=True, fastmath=True)
def _pairs(
    K: Floats,
    diagonal: Floats,
    lows: Floats,
    sums: Floats,
    path: Ints,
    k: int,
    off: float,
    limit: float,
    best: float,
    prices: Floats,
    maybe: Ints,
) -> tuple[float, int, int]:
    """Return the least value by two more samples, and them, if it is below `best`; -1 for the samples if not."""
    n = K.shape[0]
    first, second = -1, -1
    base = off
    for j in range(n):
        prices[j] = diagonal[j] + 2.0 * sums[k, j]
    for t in range(k):
        base += diagonal[path[t]]
        prices[path[t]] = 1e300
    cheapest = 1e300
    for j in range(n):
        cheapest = min(cheapest, prices[j] + lows[j])
    room, most, count = best - SLACK - base - cheapest, 0.5 * (limit - off), 0
    for j in range(n):
        count += (prices[j] + lows[j] < room) & (sums[k, j] <= most)
    if count == 0:
        return best, first, second
    count = 0
    for j in range(n):  # no branch: whether a sample passes is hard to predict
        maybe[count] = j
        count += (prices[j] + lows[j] < room) & (sums[k, j] <= most)
    for at in range(count):
        a = maybe[at]
        if not _worst(K, sums, path, k, a):
            continue
        tail = 1e300
        for b in range(n):
            tail = min(tail, prices[b] + 2.0 * K[a, b])
        if base + prices[a] + tail >= best - SLACK:
            continue
        tail = 1e300
        for b in range(n):
            price = prices[b] + 2.0 * K[a, b]
            if price < tail and b != a:
                tail, partner = price, b
        if base + prices[a] + tail < best - SLACK:
            best, first, second = base + prices[a] + tail, a, partner
    return best, first, second


@njit(cache=True)
def _search(
    K: Floats,
    diagonal: Floats,
    lows: Floats,
    floor: float,
    chosen: Ints,
    best: float,
    sums: Floats,
    path: Ints,
    inside: Bools,
    todo: Ints,
    left: Ints,
    off: Floats,
    depth: int,
    nodes: int,
) -> tuple[float, int, int]:
    """Visit up to `nodes` more sets, depth first; return the best value, the depth (-1: all done), the visits.

    The set on the path has `depth` samples; todo[k, :left[k]] are the samples by which its subset of k is to be grown.
    """
    n, budget = K.shape[0], chosen.size
    prices, maybe = np.empty(n), np.empty(n + 1, np.int64)
    visited = 0
    while visited < nodes:
        if left[depth] == 0:
            if depth == 0:
                return best, -1, visited
            depth -= 1
            inside[path[depth]] = False
            continue
        left[depth] -= 1
        j = todo[depth, left[depth]]
        grown = off[depth] + 2.0 * sums[depth, j]
        if grown > (best - floor) * (depth + 1) * depth / (budget * (budget - 1.0)) + SLACK:
            continue
        visited += 1
        _add(K, sums, depth, j)
        path[depth], inside[j] = j, True
        depth += 1
        off[depth] = grown
        left[depth] = 0
        limit = (best - floor) * (depth + 1) * depth / (budget * (budget - 1.0)) + SLACK
        if depth == budget - 2:
            best, first, second = _pairs(K, diagonal, lows, sums, path, depth, grown, limit, best, prices, maybe)
            if first >= 0:
                chosen[:depth], chosen[depth], chosen[depth + 1] = path[:depth], first, second
        else:
            left[depth] = _grow(K, sums, path, inside, depth, grown, limit, todo)
    return best, depth, visited


def _open_bound(
    floor: float, best: float, sums: Floats, todo: Ints, left: Ints, off: Floats, depth: int, budget: int
) -> float:
    """Return the least value that a set still to be visited may lead to."""
    bound = best
    for k in range(1, depth + 1):
        waiting = todo[k, : left[k]]
        if waiting.size:
            grown = off[k] + 2.0 * sums[k, waiting].min()
            bound = min(bound, floor + grown * budget * (budget - 1) / (k * (k + 1)))
    return bound


def _relaxed_bound(gram: Floats, budget: int) -> float:
    """Return a bound by convexity: the least eigenvalue may leave the diagonal, because xᵀx = N on binary x."""
    least = max(float(np.linalg.eigvalsh(gram)[0]), 0.0)
    relaxed = minimise(gram - least * np.eye(len(gram)), budget)
    return max(relaxed.value - relaxed.gap + least * budget, 0.0)


def solve(gram: Floats, budget: int, rng: np.random.Generator, *, time_limit: float = 60.0) -> Optimum:
    """Find the selection of `budget` samples with the least Σ_{i,j} K_ij, and prove it, within `time_limit` seconds.

    Examples
    --------
    >>> K = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    >>> best = solve(K, 2, np.random.default_rng(0))
    >>> best.indices.tolist(), round(best.value, 6), best.proved
    ([0, 2], 2.2, True)
    """
    end = time.monotonic() + time_limit
    n = len(gram)
    start = np.sort(np.argsort(gram.sum(axis=0), kind="stable")[:budget])
    chosen, best = search(gram, np.zeros(n), start, default_moves(n, budget) // 4, rng)
    if budget == n:
        return Optimum(chosen, best, best, 0)
    apart = gram + np.diag(np.full(n, np.inf))
    diagonal, lows = gram.diagonal().copy(), apart.min(axis=0)
    floor = float(np.sort(diagonal)[:budget].sum())
    if budget == 1:
        return Optimum(np.array([diagonal.argmin()]), floor, floor, n)
    if budget == 2:
        none = np.zeros(0, np.int64)
        best, first, second = _pairs(
            gram, diagonal, lows, np.zeros((1, n)), none, 0, 0.0, np.inf, np.inf, np.empty(n), np.empty(n + 1, np.int64)
        )
        return Optimum(np.array([first, second]), best, best, n)
    sums, off = np.zeros((budget, n)), np.zeros(budget)
    todo, left = np.zeros((budget, n), np.int64), np.zeros(budget, np.int64)
    path, inside = np.zeros(budget, np.int64), np.zeros(n, np.bool_)
    todo[0], left[0] = np.arange(n), n
    depth, nodes = 0, 0
    while depth >= 0 and time.monotonic() < end:
        best, depth, visited = _search(
            gram, diagonal, lows, floor, chosen, best, sums, path, inside, todo, left, off, depth, NODES_PER_SLICE
        )
        nodes += visited
    bound = best
    if depth >= 0:
        unvisited = _open_bound(floor, best, sums, todo, left, off, depth, budget)
        pairs = floor + float(lows.min()) * budget * (budget - 1) if left[0] else unvisited
        bound = min(best, max(min(unvisited, pairs), _relaxed_bound(gram, budget)))
    return Optimum(np.sort(chosen), best, bound, nodes)
