"""Random choice inside exact quotas per period or per class."""

import numpy as np

from coreplay.array_types import Ints
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool
from coreplay.selection.quotas import Quota, groups


@selector("period_balanced")
def period_balanced(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Keep the same number of samples of every period, at random (needs the column `arrived`)."""
    return _drawn(pool, budget, "period", rng)


@selector("class_balanced")
def class_balanced(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Keep the same number of samples of every class, at random (CBRS, Chrysakis and Moens 2020; column `label`)."""
    return _drawn(pool, budget, "class", rng)


def _drawn(pool: Pool, budget: int, quota: Quota, rng: np.random.Generator) -> Ints:
    return np.concatenate([rng.choice(rows, n, replace=False) for rows, n in groups(pool, budget, quota, rng)])
