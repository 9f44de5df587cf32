"""FedAvg (McMahan et al. 2017), the paper's algorithm."""

from dataclasses import dataclass

from coreplay.learning.context import State
from coreplay.learning.hooks import Algorithm, RoundInfo, Vector, algorithm


@algorithm("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Average the models of the clients, weighted by samples."""

    def update(
        self, parameters: Vector, change: Vector, sums: State, state: State, info: RoundInfo
    ) -> tuple[Vector, State]:
        """Move by the mean change."""
        return parameters + change, state
