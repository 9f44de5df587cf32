"""The exact optimum of equation (3), for small problems and as the yardstick of the others."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import InputError
from coreplay.selection.api import selector
from coreplay.selection.branch_and_bound import solve
from coreplay.selection.pool import Pool, number


@selector("exact")
def exact(
    pool: Pool, budget: int, rng: np.random.Generator, *, time_limit: float = 60.0
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """Find the optimum by branch and bound, with a proof, or the best within time_limit= seconds and the gap left."""
    if not number(time_limit, "time_limit") > 0:
        raise InputError(f"time_limit must be a positive number of seconds: got {time_limit}")
    best = solve(pool.gram, budget, rng, time_limit=time_limit)
    details = {"objective": best.value, "bound": best.bound, "gap": best.gap, "proved": best.proved}
    return best.indices, details
