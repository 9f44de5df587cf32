"""Bilevel coresets (Borsos et al. 2020), with the gram of gradients as the kernel.

The inner problem is kernel ridge regression of the one-hot labels on the kept samples; the outer problem is its squared
error on the whole pool. Samples are added greedily, each the one that lowers the outer error most. With P the posterior
covariance K − K_S (K_SS + ridge)⁻¹ K_Sᵀ and f the current prediction, adding j gives exactly

    f + P_j (y_j − f_j) / (P_jj + ridge),

so one turn costs O(n² c) for c classes and no system is solved again.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from coreplay.array_types import Ints
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool


@selector("bilevel_coreset")
def bilevel_coreset(
    pool: Pool, budget: int, rng: np.random.Generator, *, ridge: Annotated[float, Field(gt=0)] = 0.1
) -> Ints:
    """Keep the samples from which kernel ridge regression predicts the labels of the pool best (column `label`)."""
    labels = np.unique(pool.column("label"), return_inverse=True)[1]
    wanted = np.eye(labels.max() + 1)[labels]
    P, found = pool.gram.copy(), np.zeros_like(wanted)
    kept: list[int] = []
    for _ in range(budget):
        steps = P / (P.diagonal() + ridge)  # one column per candidate
        missing = wanted - found
        change = -2 * np.einsum("nj,nc,jc->j", steps, missing, missing, optimize=True)
        change += (steps**2).sum(axis=0) * (missing**2).sum(axis=1)
        change[kept] = np.inf
        chosen = int(change.argmin())
        kept.append(chosen)
        found += np.outer(steps[:, chosen], missing[chosen])
        P -= np.outer(steps[:, chosen], P[chosen])
    return np.array(kept)
