"""Coverage-centric coreset selection (CCS, Zheng et al. 2023), inside periods."""

from typing import Annotated

import numpy as np
from pydantic import Field

from coreplay.array_types import Ints
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool
from coreplay.selection.quotas import Quota, even_split, groups


@selector("loss_stratified")
def loss_stratified(
    pool: Pool,
    budget: int,
    rng: np.random.Generator,
    *,
    strata: Annotated[int, Field(ge=1)] = 5,
    hardest: Annotated[float, Field(ge=0, lt=1)] = 0.1,
) -> Ints:
    """Cut off the hardest part of each period, and keep evenly from ranges of loss (columns `losses`, `arrived`).

    Of each period, the fraction `hardest` with the largest losses is left out as far as the budget allows. The losses
    of the rest are cut into `strata` ranges of equal width, which keep the same number of samples each, at random.
    """
    losses = pool.column("losses")
    quota: Quota = "none" if pool.find_column("arrived") is None else "period"
    kept = []
    for rows, many in groups(pool, budget, quota, rng):
        rest = rows[np.argsort(losses[rows], kind="stable")][: max(many, len(rows) - int(hardest * len(rows)))]
        edges = np.linspace(losses[rest].min(), losses[rest].max(), strata + 1)[1:-1]
        number = np.searchsorted(edges, losses[rest])
        parts = [rest[number == k] for k in range(strata)]
        shares = even_split(np.array([len(part) for part in parts]), many, rng)
        kept += [rng.choice(part, n, replace=False) for part, n in zip(parts, shares.tolist(), strict=True) if n]
    return np.concatenate(kept)
