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
from typing import NamedTuple

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


class _Tree(NamedTuple):
    """What the compiled search works on: the gram, the set on the path, and what is left to visit."""

    K: Floats
    diagonal: Floats
    lows: Floats  # the least similarity of each sample to another one
    path: Ints  # the samples of the set, in the order in which it grew
    inside: Bools  # whether a sample is on the path
    sums: Floats  # row k: similarities of each sample to the first k samples of the path, itself left out
    off: Floats  # o of the first k samples of the path
    todo: Ints  # row k, up to left[k]: the samples by which the set of the first k is still to be grown
    left: Ints


@njit(cache=True)
def _worst(tree: _Tree, k: int, j: int) -> bool:
    """Return whether j is the worst sample of the set of k on the path with j added; of equals, the last one is.

    Sums along different paths differ by rounding. So that no set is lost, both are taken where that decides.
    """
    K, sums, path = tree.K, tree.sums, tree.path
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
def _grow(tree: _Tree, k: int, limit: float) -> None:
    """List in todo[k] the samples that keep o at or below `limit` and are the worst of the set of k with them."""
    count = 0
    for j in range(tree.path[0] + 1 if k == 1 else 0, tree.inside.size):  # of a pair, the second one is the worst
        if not tree.inside[j] and tree.off[k] + 2.0 * tree.sums[k, j] <= limit and _worst(tree, k, j):
            tree.todo[k, count] = j
            count += 1
    tree.left[k] = count


@njit(cache=True, fastmath=True)
def _add(K: Floats, sums: Floats, k: int, j: int) -> None:
    """Put the sums of similarities to a set of k samples, grown by j, into row k + 1."""
    for i in range(K.shape[0]):
        sums[k + 1, i] = sums[k, i] + K[j, i]
    sums[k + 1, j] -= K[j, j]


@njit(cache=True, fastmath=True)
def _pairs(tree: _Tree, k: int, limit: float, best: float, prices: Floats, maybe: Ints) -> tuple[float, int, int]:
    """Return the least value by two more samples, and them, if it is below `best`; -1 for the samples if not."""
    K, diagonal, lows, sums, path, off = tree.K, tree.diagonal, tree.lows, tree.sums, tree.path, tree.off[k]
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
        if not _worst(tree, k, a):
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
def _search(tree: _Tree, floor: float, chosen: Ints, best: float, depth: int, nodes: int) -> tuple[float, int, int]:
    """Visit up to `nodes` more sets, depth first; return the best value, the depth (-1: all done), the visits."""
    K, sums, path, inside, todo, left, off = tree.K, tree.sums, tree.path, tree.inside, tree.todo, tree.left, tree.off
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
        off[depth], left[depth] = grown, 0
        limit = (best - floor) * (depth + 1) * depth / (budget * (budget - 1.0)) + SLACK
        if depth == budget - 2:
            best, first, second = _pairs(tree, depth, limit, best, prices, maybe)
            if first >= 0:
                chosen[:depth], chosen[depth], chosen[depth + 1] = path[:depth], first, second
        else:
            _grow(tree, depth, limit)
    return best, depth, visited


def _open_bound(tree: _Tree, floor: float, best: float, depth: int) -> float:
    """Return the least value that a set still to be visited may lead to."""
    budget, bound = len(tree.path), best
    for k in range(1, depth + 1):
        waiting = tree.todo[k, : tree.left[k]]
        if waiting.size:
            grown = tree.off[k] + 2.0 * tree.sums[k, waiting].min()
            bound = min(bound, floor + grown * budget * (budget - 1) / (k * (k + 1)))
    return min(bound, floor + float(tree.lows.min()) * budget * (budget - 1)) if tree.left[0] else bound


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
    diagonal, lows = gram.diagonal().copy(), (gram + np.diag(np.full(n, np.inf))).min(axis=0)
    floor = float(np.sort(diagonal)[:budget].sum())
    if budget == 1:
        return Optimum(np.array([diagonal.argmin()]), floor, floor, n)
    path, inside = np.zeros(budget, np.int64), np.zeros(n, np.bool_)
    sums, off = np.zeros((budget, n)), np.zeros(budget)
    todo, left = np.zeros((budget, n), np.int64), np.zeros(budget, np.int64)
    todo[0], left[0] = np.arange(n), n
    tree = _Tree(gram, diagonal, lows, path, inside, sums, off, todo, left)
    if budget == 2:
        best, first, second = _pairs(tree, 0, np.inf, np.inf, np.empty(n), np.empty(n + 1, np.int64))
        return Optimum(np.array([first, second]), best, best, n)
    depth, nodes = 0, 0
    while depth >= 0 and time.monotonic() < end:
        best, depth, visited = _search(tree, floor, chosen, best, depth, NODES_PER_SLICE)
        nodes += visited
    bound = best
    if depth >= 0:
        bound = min(best, max(_open_bound(tree, floor, best, depth), _relaxed_bound(gram, budget)))
    return Optimum(np.sort(chosen), best, bound, nodes)
