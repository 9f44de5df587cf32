"""A coordination method: the mathematics of both halves, without the bookkeeping of rounds.

A method is a frozen dataclass whose fields are its options, registered with `coordination_method` in a separate file
in `coreplay.coordination.methods`, or in any module of yours. `Client` and `Server` do the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coreplay.coordination.matrix import Candidates
from coreplay.coordination.messages import Broadcast, Vector
from coreplay.registry import Registry
from coreplay.selection.solvers.swaps import top

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Past:
    """A client's counted answers, as the server's sums hold them: one x a round so far, zero if it never answered."""

    answers: tuple[Floats, ...]

    @property
    def last(self) -> Floats:
        """The answer in the latest sum."""
        return self.answers[-1]

    def mean(self, weights: Sequence[float]) -> Floats:
        """Return Σ_k w_k x_k, the client's share of a mixture of the rounds' sums."""
        return np.asarray(weights, dtype=np.float64) @ np.array(self.answers)


@dataclass(frozen=True)
class Steering:
    """What the server half of a method makes of the sums: the fields of the next broadcast, and how far things are."""

    vector: Vector
    relaxed: float
    weights: tuple[float, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)


class Method(ABC):
    """Both halves of a coordination method; all of it pure functions."""

    integral: ClassVar[bool]  # whether answers are selections, so that the server knows the objective
    remembers: ClassVar[bool]  # whether `steer` wants the sums of all rounds or only the latest

    @abstractmethod
    def start(self, pool: Candidates, rng: np.random.Generator) -> Floats:
        """Return the client's first x: the uncoordinated choice."""

    @abstractmethod
    def answer(self, pool: Candidates, broadcast: Broadcast, past: Past, rng: np.random.Generator) -> Floats:
        """Return the client's next x."""

    @abstractmethod
    def steer(self, sums: list[Vector], clients: int, previous: Broadcast | None) -> Steering:
        """Return what the server tells all clients after a round."""

    def settle(self, x: Floats, budget: int) -> Ints:
        """Make a selection of an x: its largest entries."""
        return top(x, budget)


_registry: Registry[type[Method]] = Registry("coordination method", "coreplay.coordination.methods")
coordination_method = _registry.register


def coordination_methods() -> dict[str, str]:
    """Return the names of all coordination methods with a one-line description of each.

    >>> sorted(coordination_methods())
    ['alternating', 'corrective']
    """
    return _registry.descriptions()


def make_method(name: str, **options: Any) -> Method:
    """Return the method of this name with these options.

    >>> make_method("alternating", diagonal="zero")
    Alternating(diagonal='zero')
    """
    made: Method = _registry.make(name, options)
    return made
