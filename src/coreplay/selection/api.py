"""Choosing at one client: `select`, `choose`, `objective` and the registry of selectors.

A selector is a function ``(pool, budget, rng, *, options) -> indices`` (or ``(indices, details)``), registered with
`selector` in a separate file in `coreplay.selection.methods`, or in any module of yours.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay.errors import InputError
from coreplay.registry import Registry
from coreplay.seeding import generator
from coreplay.selection.pool import Features, HasGram, Pool, make_pool, unit_rows, whole_number

Ints = NDArray[np.int64]
Outcome = Ints | tuple[Ints, dict[str, Any]]
Selector = Callable[..., Outcome]

DEFAULT_METHOD = "polished"

_registry: Registry[Selector] = Registry("method", "coreplay.selection.methods")
selector = _registry.register


@dataclass(frozen=True)
class Selection:
    """What a selector kept: sorted indices, and what it has to say of them (`exact`: its bound and gap)."""

    indices: Ints
    method: str
    details: dict[str, Any] = field(default_factory=dict)


def selectors() -> dict[str, str]:
    """Return the names of all selectors with a one-line description of each.

    >>> selectors()["naive_uniform"]
    'Sample uniformly from the whole pool, new and old alike.'
    """
    return _registry.descriptions()


def check_method(method: str, options: dict[str, Any]) -> None:
    """Raise an `InputError` for an unknown selector, or an option or value that it does not take, before any work.

    Values are tried on a choice among fifty samples, where there are any. What else may go wrong there, in a selector
    of somebody's own, says nothing of the values.
    """
    if _registry.options(method, options):
        try:
            choose(np.eye(50), budget=5, method=method, new=np.arange(50) < 30, seen=20, **options)
        except InputError:
            raise
        except Exception:
            return


def select(
    gradients: ArrayLike | HasGram | None = None,
    *,
    gram: ArrayLike | None = None,
    budget: int,
    method: str = DEFAULT_METHOD,
    seed: int | np.random.Generator = 0,
    features: Features | None = None,
    new: ArrayLike | None = None,
    seen: int | None = None,
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
    features : (n, k) array or function, optional
        Feature vectors for herding, which otherwise takes the gradients; or a function that returns them, or None, and
        is called only by a method that asks for them.
    new : (n,) bool array, optional
        Which samples are new in this period; needed by `approximate_uniform`, `fixed_proportion` and `balanced`.
    seen : int, optional
        How many samples the client saw in earlier periods; needed by `approximate_uniform` and `balanced`.
    **options
        Options of the method, such as ``time_limit=10`` for `exact`.

    Examples
    --------
    >>> import numpy as np
    >>> gradients = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.1], [0.0, 1.0]])
    >>> select(gradients, budget=2).tolist()
    [0, 2]
    """
    return choose(
        gradients,
        gram=gram,
        budget=budget,
        method=method,
        seed=seed,
        features=features,
        new=new,
        seen=seen,
        **options,
    ).indices


def choose(
    gradients: ArrayLike | HasGram | None = None,
    *,
    gram: ArrayLike | None = None,
    budget: int,
    method: str = DEFAULT_METHOD,
    seed: int | np.random.Generator = 0,
    features: Features | None = None,
    new: ArrayLike | None = None,
    seen: int | None = None,
    **options: Any,
) -> Selection:
    """Do what `select` does, and return the details as well: a `Selection`.

    >>> choose(gram=[[1.0, 0.5], [0.5, 1.0]], budget=1, method="exact").details["proved"]
    True
    """
    function, options = _registry[method], _registry.options(method, options)
    budget = whole_number(budget, "budget", least=1)
    pool = make_pool(gradients, gram=gram, features=features, new=new, seen=seen)
    if budget >= pool.size:
        return Selection(np.arange(pool.size), method, {"kept_all": True})
    rng = seed if isinstance(seed, np.random.Generator) else generator(_seed(seed), "select", method)
    return run_selector(function, method, pool, budget, rng, options)


def run_selector(
    function: Selector,
    method: str,
    pool: Pool,
    budget: int,
    rng: np.random.Generator,
    options: dict[str, Any],
) -> Selection:
    """Call a selector and check that it kept what it had to: `budget` different samples of the pool."""
    outcome = function(pool, budget, rng, **options)
    indices, details = outcome if isinstance(outcome, tuple) else (outcome, {})
    indices = np.unique(np.asarray(indices, dtype=np.int64))
    if len(indices) != budget or indices[0] < 0 or indices[-1] >= pool.size:
        raise RuntimeError(
            f"selector {method!r} must return {budget} different indices below {pool.size}: got {indices.tolist()}"
        )
    return Selection(indices, method, details)


def objective(
    gradients: ArrayLike | HasGram | None = None,
    kept: ArrayLike | None = None,
    *,
    gram: ArrayLike | None = None,
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
    indices = indices.astype(np.int64).reshape(-1)
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        wrong = int(indices.min() if indices.min() < 0 else indices.max())
        raise InputError(f"kept must hold indices from 0 to {size - 1}: got {wrong}")
    return cast(Ints, indices)


def _seed(seed: Any) -> int:
    return whole_number(seed, "seed", least=0)
