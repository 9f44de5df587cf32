"""FedCurv (Shoham et al. 2019) over periods: EWC with the Fisher information of all clients (Yao and Sun 2020).

At the end of period t each client computes the Fisher information F_i at the common model w_t. One more sum over
clients gives the server their mean F_t, weighted by samples, and it sends A = Σ F_t and B = Σ F_t w_t with every
training request. Clients add strength · (A w − B) to their gradients, so what others need holds a client back, too.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from coreplay.learning.context import LearningContext, State, Step
from coreplay.learning.continual.ewc import EWC
from coreplay.learning.hooks import RoundInfo, Sums, Vector, continual_method


@continual_method("fedcurv")
@dataclass(frozen=True, kw_only=True)
class FedCurv(EWC):
    """EWC with the Fisher information of all clients, in one more sum at the end of a period.

    Parameters
    ----------
    strength
        The weight of the penalty.
    max_samples
        The number of samples of each pool, drawn at random, that the Fisher information is estimated from.
    """

    period_sums: ClassVar[tuple[str, ...]] = ("fisher",)
    keeps_state: ClassVar[bool] = False

    def init(self, parameters: Vector) -> State:
        """Start without a penalty."""
        return {"precision": np.zeros_like(parameters), "pull": np.zeros_like(parameters)}

    def broadcast(self, state: State) -> State:
        """Send A and B."""
        return state

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Add strength · (A w − B)."""
        return self.penalised(ctx, gradient, ctx.received["precision"], ctx.received["pull"])

    def finish_period(self, ctx: LearningContext) -> tuple[Sums, State]:
        """Send F_i."""
        return {"fisher": ctx.fisher(self.max_samples)}, {}

    def server_period(self, sums: State, state: State, info: RoundInfo) -> State:
        """Add the mean Fisher information to A, with the period's model as its anchor."""
        return self.merged(state, sums["fisher"] / info.parameters.dtype.type(info.weight), info.parameters)
