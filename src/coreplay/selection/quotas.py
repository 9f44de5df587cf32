"""Quotas: how many samples of each group of a pool are kept, whatever selector chooses inside the groups.

Groups are new and old samples, periods of arrival, or classes. Every group gets the same number; what a small group
can't fill goes to the others, and what is left over is given to groups at random. New and old samples are kept in the
numbers of `approximate_uniform`.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from coreplay.array_types import Bools, Floats, Ints
from coreplay.selection.pool import Column, HasGram, Pool

Quota = Literal["none", "new_old", "period", "class"]
QUOTAS: tuple[Quota, ...] = get_args(Quota)


class _Part:
    """The gram of some samples of a pool, computed when it is asked for."""

    def __init__(self, pool: Pool, rows: Ints) -> None:
        self._pool, self._rows = pool, rows

    def gram(self) -> Floats:
        return self._pool.gram[np.ix_(self._rows, self._rows)]

    def __len__(self) -> int:
        return len(self._rows)


def even_split(sizes: Ints, budget: int, rng: np.random.Generator) -> Ints:
    """Return how many samples each group keeps: as evenly as sizes allow.

    >>> even_split(np.array([9, 1, 9]), 7, np.random.default_rng(0)).tolist()
    [3, 1, 3]
    """
    kept = np.zeros(len(sizes), dtype=np.int64)
    while (left := min(budget, int(sizes.sum())) - int(kept.sum())) > 0:
        open_groups = np.flatnonzero(kept < sizes)
        if left < len(open_groups):
            open_groups = rng.choice(open_groups, left, replace=False)
        kept[open_groups] += np.minimum(max(left // len(open_groups), 1), (sizes - kept)[open_groups])
    return kept


def groups(pool: Pool, budget: int, quota: Quota, rng: np.random.Generator) -> list[tuple[Ints, int]]:
    """Return the samples of each group and how many of them are kept."""
    if quota == "none":
        return [(np.arange(pool.size), min(budget, pool.size))]
    if quota == "new_old":
        new, old = pool.split()
        from_new = pool.number_of_new(budget, pool.even_share(budget), rng)
        return [(new, from_new), (old, budget - from_new)]
    values, numbers, sizes = np.unique(
        pool.column("arrived" if quota == "period" else "label"), return_inverse=True, return_counts=True
    )
    shares = even_split(sizes, budget, rng)
    return [(np.flatnonzero(numbers == k), int(shares[k])) for k in range(len(values))]


def part(pool: Pool, rows: Ints) -> Pool:
    """Return some samples of a pool as a pool."""

    def cut(name: str) -> NDArray[Any] | None:
        found = pool.find_column(name)
        return None if found is None else found[rows]

    unit = None if pool.unit is None else pool.unit[rows]
    gram: HasGram | None = _Part(pool, rows) if unit is None else None
    new: Bools | None = None if pool.new is None else pool.new[rows]
    columns: dict[str, Column] = {name: partial(cut, name) for name in pool.columns}
    return replace(pool, size=len(rows), unit=unit, given_gram=gram, new=new, columns=columns, _read={})
