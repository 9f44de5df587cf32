"""Choosing at one client: `select`, `select_from`, `objective` and the registry of selectors.

A selector is a function `(pool, budget, rng, *, options)` that returns indices, `(indices, details)` or a `Selection`.
It is registered with `selector`, in a file of `coreplay.selection.methods` or in any module of yours. Its keyword-only
parameters are its options. Their annotations are checked before any work: `turns: Annotated[int, Field(ge=1)] = 10`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from coreplay.array_types import Floats, Ints
from coreplay.errors import InputError
from coreplay.registry import Registry
from coreplay.seeding import generator
from coreplay.selection.pool import Column, HasGram, Pool, make_pool, unit_rows
from coreplay.selection.quotas import QUOTAS, Quota, groups, part
from coreplay.validation import whole_number


@dataclass(frozen=True)
class Selection:
    """What a selector kept.

    Parameters
    ----------
    indices : (budget,) array of int
        Which samples of the pool; sorted in what `select_from` returns.
    weights : (budget,) array of float, optional
        The weight of each kept sample, finite and above 0, in the order of `indices`.
    details : mapping
        What else the selector reports, as `exact` does with its bound and gap.
    """

    indices: Ints
    weights: Floats | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


Selector: TypeAlias = Callable[..., Ints | tuple[Ints, dict[str, Any]] | Selection]
DEFAULT_METHOD = "polished"

_registry: Registry[Selector] = Registry("method", "coreplay.selection.methods")
selector = _registry.register


def selectors() -> dict[str, str]:
    """Return the names of all selectors with a one-line description of each.

    >>> selectors()["naive_uniform"]
    'Sample uniformly from the whole pool, new and old alike.'
    """
    return _registry.descriptions()


def check_method(method: str, options: Mapping[str, Any]) -> None:
    """Raise an `InputError` for an unknown selector, or an option or value that it does not take."""
    _registry.options(method, options)


def select(
    gradients: ArrayLike | HasGram | None = None,
    *,
    gram: ArrayLike | None = None,
    budget: int,
    method: str = DEFAULT_METHOD,
    seed: int | np.random.Generator = 0,
    new: ArrayLike | None = None,
    seen: int | None = None,
    columns: Mapping[str, Column] | None = None,
    quota: Quota = "none",
    **options: Any,
) -> Ints:
    """Choose `budget` samples of a pool and return their indices, sorted.

    Parameters
    ----------
    gradients : (n, d) array or gradient matrix
        Loss gradients, one row per sample, in any scale: only directions count. A zero gradient is similar to none.
    gram : (n, n) array
        Instead of `gradients`: their inner products.
    budget : int
        How many to keep. A pool that is not larger is kept whole.
    method : str
        A name from `selectors()`.
    seed : int or numpy Generator
        Makes every random choice; the same seed gives the same selection.
    new : (n,) bool array, optional
        Which samples are new in this period; needed by `approximate_uniform`, `fixed_proportion` and `balanced`.
    seen : int, optional
        How many samples the client saw in earlier periods; needed by `approximate_uniform` and `balanced`.
    columns : mapping of str to (n, ...) array or function, optional
        What else is known of the samples, such as `label`, `arrived` or `losses`; `herding` follows `features` instead
        of the gradients. A function is called only by a method that reads the column; it may return None.
    quota : str
        Groups that must keep the same number of samples each, by the same method: "none", "period" (column `arrived`)
        or "class" (column `label`); "new_old" keeps new and old samples in the numbers of `approximate_uniform`.
    **options
        Options of the method, such as `time_limit=10` for `exact`.

    Examples
    --------
    >>> import numpy as np
    >>> gradients = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.1], [0.0, 1.0]])
    >>> select(gradients, budget=2).tolist()
    [0, 2]
    """
    pool = make_pool(gradients, gram=gram, new=new, seen=seen, columns=columns)
    return select_from(pool, budget=budget, method=method, seed=seed, quota=quota, **options).indices


def select_from(
    pool: Pool,
    *,
    budget: int,
    method: str = DEFAULT_METHOD,
    seed: int | np.random.Generator = 0,
    quota: Quota = "none",
    **options: Any,
) -> Selection:
    """Choose from a pool as `select` does, and return weights and details as well.

    >>> pool = make_pool(gram=[[1.0, 0.5], [0.5, 1.0]])
    >>> select_from(pool, budget=1, method="exact").details["proved"]
    True
    """
    function, options = _registry[method], _registry.options(method, options)
    budget = whole_number(budget, "budget", least=1)
    if quota not in QUOTAS:
        raise InputError(f"quota must be one of {', '.join(QUOTAS)}: got {quota!r}")
    if budget >= pool.size:
        return Selection(np.arange(pool.size), details={"kept_all": True})
    if not isinstance(seed, np.random.Generator):
        seed = generator(whole_number(seed, "seed", least=0), "select", method)
    pool = replace(pool, method=method)
    if quota == "none":
        return _checked(function(pool, budget, seed, **options), method, budget, pool.size)
    indices, weights, weighted = [], [], False
    for rows, many in groups(pool, budget, quota, seed):
        found = Selection(np.arange(len(rows)))
        if 0 < many < len(rows):
            found = _checked(function(part(pool, rows), many, seed, **options), method, many, len(rows))
        if many:
            indices.append(rows[found.indices])
            weights.append(np.ones(many) if found.weights is None else found.weights)
            weighted |= found.weights is not None
    together = Selection(np.concatenate(indices), np.concatenate(weights) if weighted else None)
    return _checked(together, method, budget, pool.size)


def _checked(outcome: Any, method: str, budget: int, size: int) -> Selection:
    """Return what a selector returned, sorted, having checked that it kept `budget` different samples of the pool."""
    if isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], Mapping):
        outcome = Selection(outcome[0], details=outcome[1])
    found = outcome if isinstance(outcome, Selection) else Selection(outcome)
    try:
        indices = np.asarray(found.indices)
        weights = None if found.weights is None else np.asarray(found.weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"selector {method!r} must return arrays of indices and weights: {error}") from None
    right = indices.dtype.kind in "iu" and indices.shape == (budget,) and len(np.unique(indices)) == budget
    if not right or indices.min() < 0 or indices.max() >= size:
        raise InputError(
            f"selector {method!r} must return {budget} different indices below {size}: got {_shown(found.indices)}"
        )
    order = np.argsort(indices)
    if weights is not None:
        if weights.shape != (budget,) or not (np.isfinite(weights) & (weights > 0)).all():
            raise InputError(
                f"selector {method!r} must return one finite weight above 0 per kept sample: "
                f"got {_shown(found.weights)} for {budget} samples"
            )
        weights = weights[order]
    return Selection(indices[order].astype(np.int64), weights, dict(found.details))


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def objective(
    gradients: ArrayLike | HasGram | None = None, kept: ArrayLike | None = None, *, gram: ArrayLike | None = None
) -> float:
    """Return Σ_{i,j in kept} cos(g_i, g_j), the paper's equation (3): the lower, the more diverse the selection.

    >>> objective([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]], [0, 1, 2])
    1.0
    """
    if kept is None:
        raise InputError("kept is missing: pass the indices that were kept")
    if gram is None and not isinstance(gradients, HasGram) and gradients is not None:
        unit = unit_rows(gradients, "gradients")
        total = unit[_indices(kept, len(unit))].sum(axis=0, dtype=np.float64)
        return float(total @ total)
    pool = make_pool(gradients, gram=gram)
    indices = _indices(kept, pool.size)
    return float(pool.gram[np.ix_(indices, indices)].sum())


def _indices(kept: ArrayLike, size: int) -> Ints:
    indices = np.asarray(kept)
    if indices.size and (indices.ndim != 1 or indices.dtype.kind not in "iu"):
        raise InputError(f"kept must be a list of indices: got dtype {indices.dtype} and shape {indices.shape}")
    wrong = indices[(indices < 0) | (indices >= size)]
    if wrong.size:
        raise InputError(f"kept must hold indices from 0 to {size - 1}: got {wrong[0]}")
    return indices.astype(np.int64).reshape(-1)
