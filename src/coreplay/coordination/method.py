"""A coordination method: the mathematics of both halves, without the bookkeeping of rounds, and what it works on.

A method is a frozen dataclass whose fields are its options, registered with `coordination_method` in a separate file
in `coreplay.coordination.methods`, or in any module of yours. `Client` and `Server` do the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay.array_types import Floats, Ints
from coreplay.coordination.messages import NEVER, Broadcast, Vector
from coreplay.errors import InputError
from coreplay.registry import Registry
from coreplay.seeding import generator
from coreplay.selection.pool import Column, HasGram, make_pool, unit_rows
from coreplay.selection.quotas import QUOTAS, Quota, groups
from coreplay.selection.solvers import in_groups
from coreplay.validation import whole_number

TARGETS = ("zero", "mean")


@runtime_checkable
class GradientMatrix(HasGram, Protocol):
    """A matrix G whose columns are the unit gradients of a pool, known by its products."""

    def combine(self, x: Any, /) -> Any:
        """Return Gx."""

    def project(self, v: Any, /) -> Any:
        """Return Gᵀv."""


class ArrayGradients:
    """The gradient matrix of an (n, d) array, one row per sample, in any scale unless they are `unit` rows already.

    >>> G = ArrayGradients([[3.0, 4.0], [0.0, 2.0]])
    >>> G.combine([1, 1]).round(6).tolist(), G.project([0.0, 1.0]).round(6).tolist()
    ([0.6, 1.8], [0.8, 1.0])
    """

    def __init__(self, gradients: ArrayLike, *, unit: bool = False) -> None:
        self._unit = np.asarray(gradients) if unit else unit_rows(gradients, "gradients")
        self.dimension = int(self._unit.shape[1])

    def __len__(self) -> int:
        return len(self._unit)

    def gram(self) -> Floats:
        """Return GᵀG."""
        return np.asarray(self._unit @ self._unit.T, dtype=np.float64)

    def combine(self, x: ArrayLike) -> NDArray[Any]:
        """Return Gx."""
        return np.asarray(np.asarray(x, dtype=self._unit.dtype) @ self._unit)

    def project(self, v: ArrayLike) -> NDArray[Any]:
        """Return Gᵀv."""
        return np.asarray(self._unit @ np.asarray(v, dtype=self._unit.dtype))


class Candidates:
    """The `size` samples that a client chooses from: their gradients, what else is known of them, and the `budget`.

    Gradients are an array in any scale or a gradient matrix; `columns`, `new` and `seen` are as in a selector's `Pool`;
    `method` is the name of the method in errors.

    Attributes
    ----------
    groups : list of (rows, int)
        The samples of each group of the quota and how many of them are kept; `rng` draws what the quota leaves to
        chance. Without a quota the pool is one group. A pool that is kept whole has no other groups either.
    offset : (n,) array
        The x that stands for the client's part of the target: the client contributes G(x − offset). It is zero for the
        target "zero", and for "mean" the budget spread over the pool, evenly or by the column `weight`.
    """

    def __init__(
        self,
        gradients: ArrayLike | GradientMatrix,
        budget: int,
        columns: Mapping[str, Column] | None = None,
        method: str = "",
        *,
        new: ArrayLike | None = None,
        seen: int | None = None,
        quota: Quota = "none",
        target: str = "zero",
        rng: np.random.Generator | None = None,
    ) -> None:
        if isinstance(gradients, HasGram) and not isinstance(gradients, GradientMatrix):
            raise InputError(
                f"a client's gradients need combine and project besides gram: {type(gradients).__name__} has none"
            )
        self.matrix = gradients if isinstance(gradients, GradientMatrix) else ArrayGradients(gradients)
        self.size = len(self.matrix)
        self.budget = whole_number(budget, "budget", least=1)
        self._pool = replace(make_pool(self.matrix, new=new, seen=seen, columns=columns), method=method)
        drawn = generator(0, "quota") if rng is None else rng
        found = groups(self._pool, self.budget, quota if self.size > self.budget else "none", drawn)
        self.groups = [(rows, many) for rows, many in found if len(rows)]
        self.offset = self._spread() if target == "mean" else np.zeros(self.size)

    def _spread(self) -> Floats:
        """Return the budget spread over the pool, evenly or by the column `weight`."""
        given = self._pool.find_column("weight")
        weight = np.ones(self.size) if given is None else given.astype(np.float64)
        if not np.isfinite(weight).all() or weight.min() < 0 or weight.sum() == 0:
            raise InputError("column 'weight' must be finite, at least 0 and not all 0 for target = \"mean\"")
        spread: Floats = weight * (min(self.budget, self.size) / weight.sum())
        return spread

    def choose_alone(self, rng: np.random.Generator) -> Ints:
        """Return what the client keeps if it knows of no others, sorted."""
        return in_groups.polish(self.gram, self.linear_alone(), self.groups, rng)

    def linear_alone(self) -> Floats:
        """Return the c of the client's problem ‖G(x − offset)‖² = xᵀKx + 2cᵀx + const without others."""
        return 0.0 - self.gram @ self.offset  # and not −0.0 without a target

    @property
    def gram(self) -> Floats:
        """The cosines between all gradients, computed once for all rounds."""
        return self._pool.gram

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, one row per sample; it is an error if the pool does not have it."""
        return self._pool.column(name)

    @cached_property
    def dimension(self) -> int:
        """The length of a gradient, and so of every contribution and broadcast."""
        known = getattr(self.matrix, "dimension", None)
        return len(self.combine(np.zeros(self.size))) if known is None else int(known)

    def project(self, vector: NDArray[Any]) -> Floats:
        """Return Gᵀv."""
        return np.asarray(self.matrix.project(vector), dtype=np.float64)

    def combine(self, x: Floats) -> Vector:
        """Return Gx as it is sent."""
        return np.ascontiguousarray(self.matrix.combine(x), dtype="<f4")


@dataclass(frozen=True)
class ServerStep:
    """What the server computes from the sums: fields of the next broadcast, and the relaxed objective reached."""

    vector: Vector
    relaxed: float
    weights: tuple[float, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)


class Method(ABC):
    """Both halves of a coordination method, as pure functions."""

    returns_selections: ClassVar[bool]  # whether answers are selections, so that the server knows the objective
    needs_all_rounds: ClassVar[bool]  # whether `server_step` needs the sums of all rounds or only the latest
    keeps_quotas: ClassVar[bool] = False  # whether answers and selections have the numbers of `Candidates.groups`

    @property
    def target(self) -> str:
        """What the sum of all kept gradients should be near: "zero", or "mean" for that of all pools in proportion."""
        return "zero"

    @abstractmethod
    def start(self, pool: Candidates, rng: np.random.Generator) -> Floats:
        """Return the client's first x: the uncoordinated choice."""

    @abstractmethod
    def answer(self, pool: Candidates, broadcast: Broadcast, past: Floats, rng: np.random.Generator) -> Floats:
        """Return the client's next x, from those of its own that are in the server's sums.

        `past` has one x per round so far, zero if the client never answered: `broadcast.weights @ past` is its part of
        a mixture of the rounds' sums. A client that never answered counts in the sums like one that answered
        `pool.offset`.
        """

    @abstractmethod
    def server_step(self, sums: list[Vector], clients: int, previous: Broadcast | None) -> ServerStep:
        """Return what the server sends to all clients after a round."""

    def round_to_selection(
        self, x: Floats, pool: Candidates, broadcast: Broadcast | None, past: Floats, rng: np.random.Generator
    ) -> Ints:
        """Return the selection that an x becomes: its largest entries, of each group.

        `broadcast` is the one that x replies to, with `past` as for `answer`; None if the client got no last broadcast.
        """
        return in_groups.top(x, pool.groups)

    def max_norm(self, budget: int, basis: int) -> float:
        """Return how long a contribution can be: a sum of unit gradients, its distance to a target, or a difference."""
        return budget * (1.0 if basis == NEVER and self.target == "zero" else 2.0)


_registry: Registry[type[Method]] = Registry("coordination method", "coreplay.coordination.methods")
coordination_method = _registry.register


def coordination_methods() -> dict[str, str]:
    """Return the names of all coordination methods with a one-line description of each.

    >>> sorted(coordination_methods())
    ['alternating', 'corrective']
    """
    return _registry.descriptions()


def check_target(target: str) -> None:
    """Raise an `InputError` for a target that is not known."""
    if target not in TARGETS:
        raise InputError(f"target must be one of {', '.join(TARGETS)}: got {target!r}")


def check_quota(quota: str, method: Method) -> None:
    """Raise an `InputError` for a quota that is not known, or that the method does not keep."""
    if quota not in QUOTAS:
        raise InputError(f"quota must be one of {', '.join(QUOTAS)}: got {quota!r}")
    if quota != "none" and not method.keeps_quotas:
        raise InputError(f"quota must be none for {type(method).__name__}, which does not keep quotas: got {quota!r}")


def make_method(method: str | Method, **options: Any) -> Method:
    """Return the method of this name with these options; a `Method` as it is.

    >>> make_method("alternating", diagonal="zero")
    Alternating(diagonal='zero', target='zero', rounding='top')
    """
    made: Method = _registry.make(method, options) if isinstance(method, str) else method
    return made
