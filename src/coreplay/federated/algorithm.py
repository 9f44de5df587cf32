"""Federated algorithms: two pure functions over explicit state, and the registry of them.

An algorithm says what a client adds to its gradients (`local`) and what the server makes of the mean change (`update`).
It is a frozen dataclass whose fields are its options, registered with `algorithm` in a file of its own in
`coreplay.federated.kinds`, or in any module of yours.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coreplay.errors import InputError
from coreplay.registry import Registry

Vector = NDArray[np.floating]
State = Mapping[str, Vector]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # of an option
A = TypeVar("A", bound=type["Algorithm"])


class Algorithm(ABC):
    """What a user subclasses: one method or two, and options as fields of any type that TOML can write.

    The server's half sees the trainable parameters alone. Floating-point buffers of the model, such as the running
    statistics of batch normalisation, are averaged over clients whatever the algorithm.
    """

    def local(self, gradient: Tensor, parameters: Tensor, start: Tensor) -> Tensor:
        """Return what a client descends along, tensor by tensor, from gradient, parameters and where those began."""
        return gradient

    def begin(self, parameters: Vector) -> State:
        """Return the server's state before the first round: vectors by name."""
        return {}

    @abstractmethod
    def update(self, parameters: Vector, change: Vector, state: State) -> tuple[Vector, State]:
        """Return the new model and state from the clients' mean change, weighted by samples."""


_registry: Registry[Callable[..., Algorithm]] = Registry("algorithm", "coreplay.federated.kinds")


def algorithm(name: str) -> Callable[[A], A]:
    """Decorate a dataclass to make it known under `name`."""

    def decorate(kind: A) -> A:
        _registry.register(name)(kind)
        return kind

    return decorate


def algorithms() -> dict[str, str]:
    """Return the names of all federated algorithms with a one-line description of each.

    >>> algorithms()["fedavg"]
    'Average the models of the clients, weighted by samples.'
    """
    return _registry.descriptions()


def make_algorithm(name: str, options: Mapping[str, Any] | None = None) -> Algorithm:
    """Return an algorithm with its options set, each of the type that its dataclass says.

    >>> make_algorithm("fedprox", {"mu": 0.1})
    FedProx(mu=0.1)
    """
    if not dataclasses.is_dataclass(_registry[name]):
        raise InputError(f"algorithm {name!r} must be a dataclass with its options as fields")
    made: Algorithm = _registry.make(name, options or {})
    return made
