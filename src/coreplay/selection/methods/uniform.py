"""The random baselines of the paper's appendix A: naive uniform, approximation of uniform, fixed proportion.

The last two want a fractional number of new samples. It is rounded up or down at random with its expectation kept, and
the old part takes the rest, so the total is exact; a part that is too short is filled up from the other.
"""

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import InputError
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool, number

Ints = NDArray[np.int64]


@selector("naive_uniform")
def naive_uniform(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Sample uniformly from the whole pool, new and old alike."""
    return rng.choice(pool.size, budget, replace=False)


@selector("approximate_uniform")
def approximate_uniform(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Sample so that the buffer approximates a uniform sample of all data seen so far (needs new=, seen=)."""
    if pool.seen is None:
        raise InputError(
            "method 'approximate_uniform' needs to know how many samples were seen in earlier periods: pass seen="
        )
    new, old = pool.split("approximate_uniform")
    if pool.seen < len(old):
        raise InputError(f"seen must be at least the number of old samples in the pool, {len(old)}: got {pool.seen}")
    return _draw(new, old, budget, budget * len(new) / (len(new) + pool.seen), rng)


@selector("fixed_proportion")
def fixed_proportion(pool: Pool, budget: int, rng: np.random.Generator, *, proportion: float = 0.5) -> Ints:
    """Sample a fixed proportion of the budget from the new samples and the rest from the old (needs new=)."""
    if not 0.0 < number(proportion, "proportion") < 1.0:
        raise InputError(f"proportion must be between 0 and 1: got {proportion}")
    new, old = pool.split("fixed_proportion")
    return _draw(new, old, budget, budget * proportion, rng)


def _draw(new: Ints, old: Ints, budget: int, share: float, rng: np.random.Generator) -> Ints:
    """Draw `share` new samples on average, and old ones up to the budget."""
    wanted = int(share) + int(rng.random() < share - int(share))
    from_new = min(max(wanted, budget - len(old)), len(new))
    kept_new = rng.choice(new, from_new, replace=False)
    return np.concatenate([kept_new, rng.choice(old, budget - from_new, replace=False)])
