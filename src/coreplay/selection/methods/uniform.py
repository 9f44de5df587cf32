"""The random baselines of the paper's appendix A, and a choice by gradients that keeps the numbers of one of them.

Approximate uniform, fixed proportion and balanced want a fractional number of new samples. It is rounded up or down at
random with its expectation kept, and the old part takes the rest, so the total is exact; a part that is too short is
filled up from the other.
"""

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import InputError
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool, number, whole_number
from coreplay.selection.swaps import polish

Ints = NDArray[np.int64]


@selector("naive_uniform")
def naive_uniform(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Sample uniformly from the whole pool, new and old alike."""
    return rng.choice(pool.size, budget, replace=False)


@selector("approximate_uniform")
def approximate_uniform(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Sample so that the buffer approximates a uniform sample of all data seen so far (needs new=, seen=)."""
    new, old = pool.split("approximate_uniform")
    return _draw(new, old, _number(new, old, budget, pool.even_share("approximate_uniform", budget), rng), budget, rng)


@selector("fixed_proportion")
def fixed_proportion(pool: Pool, budget: int, rng: np.random.Generator, *, proportion: float = 0.5) -> Ints:
    """Sample a fixed proportion of the budget from the new samples and the rest from the old (needs new=)."""
    if not 0.0 < number(proportion, "proportion") < 1.0:
        raise InputError(f"proportion must be between 0 and 1: got {proportion}")
    new, old = pool.split("fixed_proportion")
    return _draw(new, old, _number(new, old, budget, budget * proportion, rng), budget, rng)


@selector("balanced")
def balanced(pool: Pool, budget: int, rng: np.random.Generator, *, turns: int = 10) -> Ints:
    """Keep as many new and old samples as `approximate_uniform`, chosen by their gradients (needs new=, seen=).

    Choosing from the whole pool, a client keeps what is new and loses the oldest periods as fast as by chance. Here
    each part has its number: the old samples are chosen given the new ones and the new ones given the old, in up to
    `turns` turns while that lowers the objective, beginning once with either.
    """
    turns = whole_number(turns, "turns", least=1)
    new, old = pool.split("balanced")
    from_new = _number(new, old, budget, pool.even_share("balanced", budget), rng)
    both = ((old, budget - from_new), (new, from_new))
    found = [_in_turns(pool.gram, parts, turns, rng) for parts in (both, both[::-1])]
    return min(found, key=lambda kept: float(pool.gram[np.ix_(kept, kept)].sum()))


def _in_turns(
    gram: NDArray[np.float64], parts: tuple[tuple[Ints, int], ...], turns: int, rng: np.random.Generator
) -> Ints:
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


def _number(new: Ints, old: Ints, budget: int, share: float, rng: np.random.Generator) -> int:
    """Return how many new samples to keep: `share` on average, and as many as the old ones leave room for."""
    wanted = int(share) + int(rng.random() < share - int(share))
    return min(max(wanted, budget - len(old)), len(new))


def _draw(new: Ints, old: Ints, from_new: int, budget: int, rng: np.random.Generator) -> Ints:
    kept_new = rng.choice(new, from_new, replace=False)
    return np.concatenate([kept_new, rng.choice(old, budget - from_new, replace=False)])
