"""Herding, as in iCaRL: keep the samples whose mean follows the mean of the pool, one after the other.

With unit vectors φ and s the sum of those kept, the k-th sample minimises ‖μ − (s + φ_j)/k‖², that is
(‖φ_j‖² + 2 sᵀφ_j)/k² − 2 μᵀφ_j/k: all from the gram of the φ.
"""

import numpy as np
from numpy.typing import NDArray

from coreplay.selection.api import selector
from coreplay.selection.pool import Pool


@selector("herding")
def herding(pool: Pool, budget: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Greedily match the mean of the features (of the task in a run), or of the gradients if there are none."""
    if pool.features is None:
        K = pool.gram
    else:
        K = np.asarray(pool.features @ pool.features.T, dtype=np.float64)
    norms, to_mean = K.diagonal(), K.mean(axis=0)
    to_sum = np.zeros(pool.size)
    kept: list[int] = []
    for k in range(1, budget + 1):
        cost = (norms + 2 * to_sum) / k**2 - 2 * to_mean / k
        cost[kept] = np.inf
        kept.append(int(cost.argmin()))
        to_sum += K[kept[-1]]
    return np.array(kept)
