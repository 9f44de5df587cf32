"""SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of clients that differ.

Client i keeps c_i, the server keeps c, the mean of all c_i. A client steps along g − c_i + c. After K steps of rate η
from x to y it sets (option II of the paper)

    c_i⁺ = c_i − c + (x − y) / (K η)

and sends y − x and c_i⁺ − c_i. The server moves x by `server_lr` times the mean change, and c by the sum of the
changes of c_i over the clients that took part, divided by the number of all clients. Here both means weigh clients by
their samples, as FedAvg does; with clients of equal size they are the paper's.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from coreplay.errors import InputError
from coreplay.learning.context import LearningContext, State, Step
from coreplay.learning.hooks import Algorithm, NotNegative, RoundInfo, Sums, Vector, algorithm


@algorithm("scaffold")
@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """FedAvg with control variates at the server and at each client, against the drift of clients that differ.

    Parameters
    ----------
    server_lr
        The server's learning rate.
    """

    server_lr: NotNegative = 1.0
    round_sums: ClassVar[tuple[str, ...]] = ("control",)
    keeps_state: ClassVar[bool] = True

    def check(self, settings: Any) -> None:
        """Refuse optimizers whose steps are not the learning rate times the gradient."""
        if settings.optimizer != "sgd" or settings.momentum or settings.weight_decay:
            raise InputError(
                "algorithm 'scaffold' needs plain SGD at the clients: set federated.optimizer = \"sgd\", "
                "federated.momentum = 0 and federated.weight_decay = 0"
            )

    def init(self, parameters: Vector) -> State:
        """Start with c = 0."""
        return {"control": np.zeros_like(parameters)}

    def broadcast(self, state: State) -> State:
        """Send c."""
        return {"control": state["control"]}

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Return g − c_i + c."""
        return gradient.sub_(_own(ctx)).add_(ctx.received["control"])

    def finish_round(self, ctx: LearningContext, change: Tensor) -> tuple[Sums, State]:
        """Return c_i⁺ − c_i, and keep c_i⁺."""
        own = _own(ctx)
        new = own - ctx.received["control"] - change / (ctx.steps * ctx.settings.learning_rate)
        return {"control": new - own}, {"control": new.numpy()}

    def update(
        self, parameters: Vector, change: Vector, sums: State, state: State, info: RoundInfo
    ) -> tuple[Vector, State]:
        """Move the model by the mean change, and c by the share of the clients that took part."""
        number = parameters.dtype.type
        control = state["control"] + sums["control"] / number(info.total_weight)
        return parameters + number(self.server_lr) * change, {"control": control}


def _own(ctx: LearningContext) -> Tensor:
    return torch.from_numpy(ctx.state["control"]) if ctx.state else torch.zeros_like(ctx.start)
