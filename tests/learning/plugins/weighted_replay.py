"""Uniform replay in which each kept sample stands for all that the client has seen, as a plugin."""

import numpy as np

import coreplay
from coreplay.selection import Selection


@coreplay.selector("weighted_uniform")
def weighted_uniform(pool, budget, rng, *, cap: float = 10.0):
    """Sample uniformly, and weigh each kept sample by samples seen per sample kept."""
    indices = np.sort(rng.choice(pool.size, budget, replace=False))
    seen = pool.seen + int(pool.new.sum())
    return Selection(indices, weights=np.full(budget, min(cap, seen / budget)))
