"""Random selectors (the paper's appendix A), and a choice by gradients that keeps the numbers of one of them."""

from typing import Annotated

import numpy as np
from pydantic import Field

from coreplay.array_types import Floats, Ints
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool
from coreplay.selection.solvers.swaps import polish


@selector("naive_uniform")
def naive_uniform(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Sample uniformly from the whole pool, new and old alike."""
    return rng.choice(pool.size, budget, replace=False)


@selector("approximate_uniform")
def approximate_uniform(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Sample so that the buffer approximates a uniform sample of all data seen so far (needs new=, seen=)."""
    return _draw(pool, budget, pool.even_share(budget), rng)


@selector("fixed_proportion")
def fixed_proportion(
    pool: Pool, budget: int, rng: np.random.Generator, *, proportion: Annotated[float, Field(gt=0, lt=1)] = 0.5
) -> Ints:
    """Sample a fixed proportion of the budget from the new samples and the rest from the old (needs new=)."""
    return _draw(pool, budget, budget * proportion, rng)


@selector("balanced")
def balanced(pool: Pool, budget: int, rng: np.random.Generator, *, turns: Annotated[int, Field(ge=1)] = 10) -> Ints:
    """Keep as many new and old samples as `approximate_uniform`, chosen by their gradients (needs new=, seen=).

    Choosing from the whole pool, a client keeps what is new and loses the oldest periods as fast as by chance. Here
    each part has its number: the old samples are chosen given the new ones and the new ones given the old, in up to
    `turns` turns while that lowers the objective, beginning once with either.
    """
    new, old = pool.split()
    from_new = pool.number_of_new(budget, pool.even_share(budget), rng)
    both = ((old, budget - from_new), (new, from_new))
    found = [_in_turns(pool.gram, parts, turns, rng) for parts in (both, both[::-1])]
    return min(found, key=lambda kept: float(pool.gram[np.ix_(kept, kept)].sum()))


def _in_turns(gram: Floats, parts: tuple[tuple[Ints, int], ...], turns: int, rng: np.random.Generator) -> Ints:
    """Choose the given numbers of samples of each part, given what is kept of the other, until nothing gets better."""
    kept = [np.empty(0, dtype=np.int64) for _ in parts]
    best, least = np.concatenate(kept), np.inf
    for _ in range(turns):
        for side, (part, many) in enumerate(parts):
            if many:
                linear = gram[np.ix_(part, kept[1 - side])].sum(axis=1)
                own = np.ascontiguousarray(gram[np.ix_(part, part)])
                kept[side] = part[polish(own, many, rng, linear=linear)[0]]
        together = np.concatenate(kept)
        value = float(gram[np.ix_(together, together)].sum())
        if value > least - 1e-9:
            break
        best, least = together, value
    return best


def _draw(pool: Pool, budget: int, share: float, rng: np.random.Generator) -> Ints:
    new, old = pool.split()
    from_new = pool.number_of_new(budget, share, rng)
    kept_new = rng.choice(new, from_new, replace=False)
    return np.concatenate([kept_new, rng.choice(old, budget - from_new, replace=False)])
