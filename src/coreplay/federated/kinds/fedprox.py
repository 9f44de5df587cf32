"""FedProx (Li et al. 2020): clients that are pulled back to where they started."""

from dataclasses import dataclass

from torch import Tensor

from coreplay.federated.algorithm import NotNegative, algorithm
from coreplay.federated.kinds.fedavg import FedAvg


@algorithm("fedprox")
@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg with mu/2 ‖w − w₀‖² added to each client's loss.

    Parameters
    ----------
    mu
        Weight of the pull; 0 is FedAvg.
    """

    mu: NotNegative = 0.01

    def local(self, gradient: Tensor, parameters: Tensor, start: Tensor) -> Tensor:
        """Add the gradient of the pull."""
        return gradient.add_(parameters, alpha=self.mu).sub_(start, alpha=self.mu)
