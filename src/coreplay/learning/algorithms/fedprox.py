"""FedProx (Li et al. 2020): clients are pulled back to where the round started."""

from dataclasses import dataclass

from torch import Tensor

from coreplay.learning.algorithms.fedavg import FedAvg
from coreplay.learning.context import LearningContext, Step
from coreplay.learning.hooks import NotNegative, algorithm


@algorithm("fedprox")
@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg with mu/2 ‖w − w₀‖² added to each client's loss.

    Parameters
    ----------
    mu
        The weight of the pull. 0 is FedAvg.
    """

    mu: NotNegative = 0.01

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Add the gradient of the pull."""
        return gradient.add_(ctx.parameters, alpha=self.mu).sub_(ctx.start, alpha=self.mu)
