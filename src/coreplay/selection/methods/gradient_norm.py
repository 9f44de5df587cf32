"""The samples with the longest gradients, as Re-Fed (Li et al. 2024) weighs importance."""

import numpy as np

from coreplay.array_types import Ints
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool


@selector("gradient_norm")
def gradient_norm(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Keep the samples whose gradients are longest (column `norms`; gradients given as an array have it)."""
    return np.argsort(-pool.column("norms"), kind="stable")[:budget]
