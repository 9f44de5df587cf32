"""FedDyn (Acar et al. 2021): each client's objective is corrected so that its optimum is that of all clients.

Client i keeps h_i, the server h, all 0 at first. In a round that starts from x, a client descends along
g − h_i + alpha (w − x) to w_i and sets h_i ← h_i − alpha (w_i − x). The server sets

    h ← h − alpha · Σ over answers of (w_i − x) / number of all clients,    x ← mean of w_i − h / alpha

Sums and means weigh clients by their samples, as FedAvg does; with clients of equal size they are the paper's.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coreplay.learning.context import LearningContext, State, Step
from coreplay.learning.hooks import Algorithm, RoundInfo, Sums, Vector, algorithm


@algorithm("feddyn")
@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """Dynamic regularisation: clients' objectives are corrected towards the optimum of all.

    Parameters
    ----------
    alpha
        The weight of the regularisation, greater than 0.
    """

    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    keeps_state: ClassVar[bool] = True

    def init(self, parameters: Vector) -> State:
        """Start with h = 0."""
        return {"correction": np.zeros_like(parameters)}

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Return g − h_i + alpha (w − x)."""
        if ctx.state:
            gradient.sub_(torch.from_numpy(ctx.state["correction"]))
        return gradient.add_(ctx.parameters - ctx.start, alpha=self.alpha)

    def finish_round(self, ctx: LearningContext, change: Tensor) -> tuple[Sums, State]:
        """Keep the new h_i."""
        before = ctx.state["correction"] if ctx.state else 0.0
        return {}, {"correction": before - np.float32(self.alpha) * change.numpy()}

    def update(
        self, parameters: Vector, change: Vector, sums: State, state: State, info: RoundInfo
    ) -> tuple[Vector, State]:
        """Move h by the share of the clients that answered, and the model by the mean change and h."""
        number = parameters.dtype.type
        share = number(info.weight / info.total_weight)
        correction = state["correction"] - number(self.alpha) * share * change
        return parameters + change - correction / number(self.alpha), {"correction": correction}
