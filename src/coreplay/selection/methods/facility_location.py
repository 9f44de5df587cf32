"""Facility location (Mirzasoleiman et al. 2020, CRAIG): every sample of the pool has a similar one among the kept."""

import numpy as np

from coreplay.array_types import Ints
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool


@selector("facility_location")
def facility_location(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Maximise Σ over the pool of the similarity to the nearest kept sample, greedily (within 1 − 1/e of the best)."""
    similarity = 1 + pool.gram
    nearest = np.zeros(pool.size)
    kept: list[int] = []
    for _ in range(budget):
        gains = np.maximum(similarity - nearest[:, None], 0).sum(axis=0)
        gains[kept] = -1
        kept.append(int(gains.argmax()))
        nearest = np.maximum(nearest, similarity[:, kept[-1]])
    return np.array(kept)
