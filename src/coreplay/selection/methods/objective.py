"""Selectors that minimise the paper's objective, Σ_{i,j kept} cos(g_i, g_j) (equation 3), exactly or nearly.

The relaxations let x be in [0, 1] instead of {0, 1}, are solved, and keep the N largest entries (section 4.2).
"""

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from coreplay.array_types import Ints
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool
from coreplay.selection.solvers.branch_and_bound import solve
from coreplay.selection.solvers.capped_simplex import minimise
from coreplay.selection.solvers.swaps import polish, scatter, top


@selector("convex_relaxation")
def convex_relaxation(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Solve the convex relaxation of equation (4) and keep the N largest entries."""
    return top(minimise(pool.gram, budget).x, budget)


@selector("relaxation")
def relaxation(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Solve the non-convex relaxation (diagonal set to zero) and keep the N largest entries: the paper's method."""
    start = scatter(pool.size, budget, rng)
    return top(minimise(pool.gram, budget, diagonal="zero", start=start).x, budget)


@selector("polished")
def polished(
    pool: Pool, budget: int, rng: np.random.Generator, *, moves: Annotated[int, Field(ge=0)] | None = None
) -> Ints:
    """Start from the non-convex relaxation and exchange samples while it pays, then search on: the default."""
    return polish(pool.gram, budget, rng, moves=moves)[0]


@selector("exact")
def exact(
    pool: Pool, budget: int, rng: np.random.Generator, *, time_limit: Annotated[float, Field(gt=0)] = 60.0
) -> tuple[Ints, dict[str, Any]]:
    """Find the optimum by branch and bound, with a proof, or the best within time_limit= seconds and the gap left."""
    best = solve(pool.gram, budget, rng, time_limit=time_limit)
    return best.indices, {"objective": best.value, "bound": best.bound, "gap": best.gap, "proved": best.proved}
