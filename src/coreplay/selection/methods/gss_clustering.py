"""GSS clustering (Aljundi et al. 2019): an online cover of the gradients by centres more than τ apart.

Distance is 1 − cosine. A new sample enters if it is farther than τ from all that is kept; on overflow τ grows by the
factor 1 + growth until a sweep over the samples, from a random first centre, keeps no more than the budget. That may
keep fewer: here the buffer is then filled up with the samples farthest from those kept.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from coreplay.errors import InputError
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool, number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
def gss_clustering(pool: Pool, budget: int, rng: np.random.Generator, *, growth: float = 0.1) -> Ints:
    """Stream the pool in random order and keep cluster centres, as GSS clustering does; then fill up."""
    if not number(growth, "growth") > 0:
        raise InputError(f"growth must be positive: got {growth}")
    return np.asarray(_cluster(pool.gram, rng.permutation(pool.size), budget, growth, rng))
