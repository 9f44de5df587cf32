"""The paper's relaxations: x in [0, 1] instead of {0, 1}, solved, then the N largest entries (section 4.2)."""

import numpy as np
from numpy.typing import NDArray

from coreplay.selection.api import selector
from coreplay.selection.capped_simplex import minimise
from coreplay.selection.pool import Pool, whole_number
from coreplay.selection.swaps import polish, scatter, top

Ints = NDArray[np.int64]


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
def polished(pool: Pool, budget: int, rng: np.random.Generator, *, moves: int | None = None) -> Ints:
    """Start from the non-convex relaxation and exchange samples while it pays, then search on: the default."""
    moves = None if moves is None else whole_number(moves, "moves", least=0)
    return polish(pool.gram, budget, rng, moves=moves)[0]
