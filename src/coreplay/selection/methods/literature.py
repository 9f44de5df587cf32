"""Selectors from the literature: GSS (Aljundi et al. 2019) in three forms, and herding (iCaRL, Rebuffi et al. 2017).

*GSS greedy*, sample by sample: a stream in random order against scores that are never refreshed. The original decides
per mini-batch with mean gradients as references; here the batch size is 1 and references are single samples. Scores are
cosines + 1, so that they lie in [0, 2].

*GSS clustering*: an online cover of the gradients by centres more than τ apart, with the distance 1 − cosine. A sample
enters if it is farther than τ from all that is kept; on overflow τ grows by the factor 1 + growth until a sweep over
the samples, from a random first centre, keeps no more than the budget. That may keep fewer: here the buffer is then
filled up with the samples farthest from those kept.

*GSS by integer programming*: branch and bound on the convex relaxation. A node fixes some x at 0 or 1 and relaxes the
others; it is solved over the capped simplex, gives a lower bound and, by its N largest entries, a selection. It
branches on the entry nearest to 1/2, the nearer integer first, depth first. The original ran MIOSQP with 1000 nodes and
took entries within 1e-3 of an integer as integer, as here.

*Herding* keeps the samples whose mean follows the mean of the pool, one after the other. With unit vectors φ and s the
sum of those kept, the k-th sample minimises ‖μ − (s + φ_j)/k‖², that is (‖φ_j‖² + 2 sᵀφ_j)/k² − 2 μᵀφ_j/k: all from the
gram of the φ.
"""

from typing import Annotated

import numpy as np
from numba import njit
from pydantic import Field

from coreplay.array_types import Floats, Ints
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool, unit_rows
from coreplay.selection.solvers.capped_simplex import solve_convex

FIRST_SCORE = 0.1  # of the very first sample, which has nothing to be compared with


@njit(cache=True)
def _closest(K: Floats, buffer: Ints, count: int, sample: int, draws: int, rng: np.random.Generator) -> float:
    """Return the largest cosine of the sample to up to `draws` random samples of the buffer."""
    order = buffer[:count].copy()
    closest = -1.0
    for k in range(min(draws, count)):
        pick = k + int(rng.random() * (count - k))
        order[k], order[pick] = order[pick], order[k]
        closest = max(closest, K[sample, order[k]])
    return closest


@njit(cache=True)
def _greedy(K: Floats, stream: Ints, budget: int, references: int, rng: np.random.Generator) -> Ints:
    buffer = stream[:budget].copy()
    scores = np.empty(budget)
    for place in range(stream.size):
        sample = stream[place]
        count = min(place, budget)
        cosine = _closest(K, buffer, count, sample, references, rng)
        score = FIRST_SCORE if place == 0 else cosine + 1.0
        if place < budget:
            scores[place] = score
            continue
        if cosine >= 0.0:
            continue
        total = scores.sum()
        threshold = rng.random() * total
        candidate = 0 if total > 0.0 else int(rng.random() * budget)
        while total > 0.0 and candidate < budget - 1 and threshold >= scores[candidate]:
            threshold -= scores[candidate]
            candidate += 1
        rivals = scores[candidate] + score
        if rng.random() * rivals < scores[candidate]:
            buffer[candidate], scores[candidate] = sample, score
    return buffer


def _in_order(pool: Pool, rng: np.random.Generator) -> Ints:
    """Return a random order of the pool, in which the buffer comes before what is new: these methods are online."""
    if pool.new is None:
        return rng.permutation(pool.size)
    return np.concatenate([rng.permutation(part) for part in pool.split()[::-1]])


@selector("gss_greedy")
def gss_greedy(
    pool: Pool, budget: int, rng: np.random.Generator, *, references: Annotated[int, Field(ge=1)] = 10
) -> Ints:
    """Stream the pool in random order and replace similar samples at random, as GSS greedy does."""
    return np.asarray(_greedy(pool.gram, _in_order(pool, rng), budget, references, rng))


@njit(cache=True)
def _nearest(K: Floats, sample: int, kept: Ints, count: int) -> float:
    distance = np.inf
    for k in range(count):
        distance = min(distance, 1.0 - K[sample, kept[k]])
    return distance


@njit(cache=True)
def _sweep(K: Floats, samples: Ints, count: int, tau: float, first: int) -> int:
    """Keep in `samples` those farther than tau from all kept before them, beginning with `first`; return how many."""
    samples[0], samples[first] = samples[first], samples[0]
    kept = 1
    for k in range(1, count):
        if _nearest(K, samples[k], samples, kept) > tau:
            samples[kept] = samples[k]
            kept += 1
    return kept


@njit(cache=True)
def _cluster(K: Floats, stream: Ints, budget: int, growth: float, rng: np.random.Generator) -> Ints:
    n = stream.size
    kept = np.empty(max(budget, 1) + 1, np.int64)
    count = 0
    tau = -1.0  # nothing is refused until the buffer has overflowed once
    for sample in stream:
        if count > 0 and _nearest(K, sample, kept, count) <= tau:
            continue
        kept[count] = sample
        count += 1
        if count <= budget:
            continue
        tau = np.inf
        for k in range(count):
            tau = min(tau, _nearest(K, kept[k], kept, k))
        tau = max(tau, 1e-9)
        while count > budget:
            tau *= 1.0 + growth
            count = _sweep(K, kept, count, tau, int(rng.random() * count))
    inside = np.zeros(n, np.bool_)
    for k in range(count):
        inside[kept[k]] = True
    while count < budget:
        farthest, distance = -1, -np.inf
        for sample in stream:
            if not inside[sample]:
                d = _nearest(K, sample, kept, count)
                if d > distance:
                    farthest, distance = sample, d
        kept[count] = farthest
        inside[farthest] = True
        count += 1
    return kept[:budget].copy()


@selector("gss_clustering")
def gss_clustering(
    pool: Pool, budget: int, rng: np.random.Generator, *, growth: Annotated[float, Field(gt=0)] = 0.1
) -> Ints:
    """Stream the pool in random order and keep cluster centres, as GSS clustering does; then fill up."""
    return np.asarray(_cluster(pool.gram, _in_order(pool, rng), budget, growth, rng))


INTEGRALITY = 1e-3
TOLERANCE = 1e-4  # of a relaxation, and so of its bound


@njit(cache=True)
def _branch(K: Floats, budget: int, nodes: int) -> Ints:
    best, least = np.arange(budget), np.inf
    stack = [np.full(K.shape[0], -1)]  # nodes: the value of each x, -1 if it is free
    for _ in range(nodes):
        if len(stack) == 0:
            break
        fixed = stack.pop()
        ones, free = np.flatnonzero(fixed == 1), np.flatnonzero(fixed == -1)
        missing = budget - ones.size
        if missing < 0 or missing > free.size:
            continue
        x = (fixed == 1).astype(np.float64)
        if missing > 0:
            even, linear = np.full(free.size, missing / free.size), K[ones][:, free].sum(axis=0)
            x[free] = solve_convex(K[free][:, free], linear, missing, even, TOLERANCE)
        if np.dot(x, np.dot(K, x)) * (1.0 - TOLERANCE) >= least - 1e-9:
            continue
        kept = np.argsort(-x)[:budget]
        value = K[kept][:, kept].sum()
        if value < least:
            best, least = kept, value
        fraction = np.where(fixed == -1, np.minimum(x, 1.0 - x), 0.0)
        branch = fraction.argmax()
        if fraction[branch] > INTEGRALITY:
            near = 1 if x[branch] >= 0.5 else 0
            for side in (1 - near, near):  # pushed last, tried first
                child = fixed.copy()
                child[branch] = side
                stack.append(child)
    return best


@selector("gss_iqp")
def gss_iqp(pool: Pool, budget: int, rng: np.random.Generator, *, nodes: Annotated[int, Field(ge=1)] = 1000) -> Ints:
    """Solve the integer quadratic programme by branch and bound on the relaxation, up to nodes= nodes."""
    return np.asarray(_branch(pool.gram, budget, nodes))


@selector("herding")
def herding(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Greedily match the mean of the column `features` (of the task in a run), or of the gradients without one."""
    features = pool.find_column("features")
    if features is None:
        K = pool.gram
    else:
        unit = unit_rows(features, "features")
        K = np.asarray(unit @ unit.T, dtype=np.float64)
    norms, to_mean = K.diagonal(), K.mean(axis=0)
    to_sum = np.zeros(pool.size)
    kept: list[int] = []
    for k in range(1, budget + 1):
        cost = (norms + 2 * to_sum) / k**2 - 2 * to_mean / k
        cost[kept] = np.inf
        kept.append(int(cost.argmin()))
        to_sum += K[kept[-1]]
    return np.array(kept)
