"""The FedOpt family (Reddi et al. 2021): the mean change is a gradient for an optimiser at the server."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from coreplay.learning.context import State
from coreplay.learning.hooks import Algorithm, NotNegative, RoundInfo, Vector, algorithm


@algorithm("fedavgm")
@dataclass(frozen=True, kw_only=True)
class FedAvgM(Algorithm):
    """FedAvg with momentum at the server.

    Parameters
    ----------
    server_lr
        The learning rate of the server.
    momentum
        The share of the velocity that is kept from round to round.
    """

    server_lr: NotNegative = 1.0
    momentum: NotNegative = 0.9

    def init(self, parameters: Vector) -> State:
        """Start at rest."""
        return {"velocity": np.zeros_like(parameters)}

    def update(
        self, parameters: Vector, change: Vector, sums: State, state: State, info: RoundInfo
    ) -> tuple[Vector, State]:
        """Move by the velocity, which the change adds to."""
        velocity = self.momentum * state["velocity"] + change
        return parameters + self.server_lr * velocity, {"velocity": velocity}


class _Adaptive(Algorithm):
    """m ← β₁m + (1 − β₁)Δ, v by the subclass, w ← w + server_lr · m / (√v + τ)."""

    server_lr: NotNegative
    beta1: NotNegative
    tau: NotNegative

    def init(self, parameters: Vector) -> State:
        """Start with no momentum and v = τ²."""
        return {"mean": np.zeros_like(parameters), "square": np.full_like(parameters, self.tau**2)}

    @abstractmethod
    def square(self, before: Vector, new: Vector) -> Vector:
        """Return v from its last value and Δ²."""

    def update(
        self, parameters: Vector, change: Vector, sums: State, state: State, info: RoundInfo
    ) -> tuple[Vector, State]:
        """Move along the mean, each coordinate by its own measure."""
        mean = self.beta1 * state["mean"] + (1 - self.beta1) * change
        square = self.square(state["square"], change * change)
        return parameters + self.server_lr * mean / (np.sqrt(square) + self.tau), {"mean": mean, "square": square}


@algorithm("fedadagrad")
@dataclass(frozen=True, kw_only=True)
class FedAdagrad(_Adaptive):
    """FedOpt with Adagrad at the server: v grows by Δ²."""

    server_lr: NotNegative = 0.01
    beta1: NotNegative = 0.0
    tau: NotNegative = 0.001

    def square(self, before: Vector, new: Vector) -> Vector:
        """Add."""
        return before + new


@algorithm("fedadam")
@dataclass(frozen=True, kw_only=True)
class FedAdam(_Adaptive):
    """FedOpt with Adam at the server: v is a running mean of Δ²."""

    server_lr: NotNegative = 0.01
    beta1: NotNegative = 0.9
    beta2: NotNegative = 0.99
    tau: NotNegative = 0.001

    def square(self, before: Vector, new: Vector) -> Vector:
        """Mix in."""
        return self.beta2 * before + (1 - self.beta2) * new


@algorithm("fedyogi")
@dataclass(frozen=True, kw_only=True)
class FedYogi(_Adaptive):
    """FedOpt with Yogi at the server: v moves towards Δ² by steps of the size of Δ²."""

    server_lr: NotNegative = 0.01
    beta1: NotNegative = 0.9
    beta2: NotNegative = 0.99
    tau: NotNegative = 0.001

    def square(self, before: Vector, new: Vector) -> Vector:
        """Step towards."""
        return before - (1 - self.beta2) * new * np.sign(before - new)
