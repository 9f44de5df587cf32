"""Gradient matching (GradMatch, Killamsetty et al. 2021; for replay GCR, Tiwari et al. 2022).

Choose S and weights w ≥ 0 so that Σ_{j in S} w_j g_j stands for Σ_i a_i g_i over the pool, where a_i are the weights
that samples have: orthogonal matching pursuit on the gram K. Each turn takes the sample with the largest product with
the residual, and fits the weights of all that are taken,

    min over w ≥ 0 of  wᵀK_S w − 2 wᵀ(K a)_S + ridge · ‖w‖².
"""

from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.optimize import nnls

from coreplay.array_types import Floats, Ints
from coreplay.selection.api import Selection, selector
from coreplay.selection.pool import Pool

LEAST = 1e-3  # the least weight of a kept sample, as a part of the mean


@selector("gradient_matching")
def gradient_matching(
    pool: Pool,
    budget: int,
    rng: np.random.Generator,
    *,
    ridge: Annotated[float, Field(ge=0)] = 0.01,
    weighted: bool = True,
) -> Selection:
    """Choose samples whose weighted gradients add up to those of the pool (uses the columns `norms` and `weight`).

    With `weighted` the kept samples get the weights found, scaled to a mean of 1. `ridge` keeps single weights small.
    """
    norms, weight = pool.find_column("norms"), pool.find_column("weight")
    scale = np.ones(pool.size) if norms is None else norms / max(float(np.mean(norms)), 1e-30)
    K = pool.gram * scale * scale[:, None]
    wanted = K @ (np.ones(pool.size) if weight is None else weight.astype(np.float64))
    kept, weights = matched(K, wanted, budget, ridge)
    if not weighted:
        return Selection(kept)
    weights = np.maximum(weights / max(float(weights.mean()), 1e-30), LEAST)
    return Selection(kept, weights * budget / weights.sum())


def matched(K: Floats, wanted: Floats, budget: int, ridge: float) -> tuple[Ints, Floats]:
    """Return the samples that matching pursuit takes, and their weights."""
    kept: list[int] = []
    weights = np.empty(0)
    for _ in range(budget):
        correlation = wanted - (K[:, kept] @ weights if kept else 0)
        correlation[kept] = -np.inf
        kept.append(int(correlation.argmax()))
        inner = K[np.ix_(kept, kept)]
        inner[np.diag_indices_from(inner)] += ridge + 1e-9 * np.trace(inner)
        root = np.linalg.cholesky(inner)
        weights, _ = nnls(root.T, np.linalg.solve(root, wanted[kept]))
    return np.array(kept), weights
