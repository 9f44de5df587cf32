"""Fed-A-GEM (Dai et al. 2023): A-GEM with the gradient of all clients' buffers as the reference.

With its update a client sends the gradient of its kept samples at the round's first model, and at the end of a period
that of its pool at the period's model. The server sends their mean, weighted by samples, with the next training
request; clients take away the part of each step that goes against it. The reference is one round old, so that no
further message is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coreplay.data import Samples
from coreplay.learning.context import LearningContext, State, Step
from coreplay.learning.continual.gem import new_batches, projected
from coreplay.learning.hooks import LearningHook, RoundInfo, Sums, Vector, continual_method


@continual_method("fed_a_gem")
@dataclass(frozen=True, kw_only=True)
class FedAGEM(LearningHook):
    """Take away the part of a step that would raise the mean loss on the buffers of all clients."""

    from_period: ClassVar[int] = 1
    round_sums: ClassVar[tuple[str, ...]] = ("reference",)
    period_sums: ClassVar[tuple[str, ...]] = ("reference",)
    extra_passes: ClassVar[str] = "one forward and backward pass over kept samples per round"

    def init(self, parameters: Vector) -> State:
        """Start without a reference."""
        return {"reference": np.zeros_like(parameters)}

    def broadcast(self, state: State) -> State:
        """Send the reference."""
        return state

    def batches(self, ctx: LearningContext, epoch: int) -> Iterator[Samples]:
        """Train on new samples."""
        return new_batches(ctx)

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Project on the half-space in which the buffers lose nothing."""
        return projected(gradient, ctx.received["reference"])

    def finish_round(self, ctx: LearningContext, change: Tensor) -> tuple[Sums, State]:
        """Send the gradient of the kept samples at the round's first model."""
        kept = ctx.kept
        none = torch.zeros_like(ctx.start)
        return {"reference": ctx.at(ctx.start).gradient(kept, ctx.draw_view()) if len(kept) else none}, {}

    def finish_period(self, ctx: LearningContext) -> tuple[Sums, State]:
        """Send the gradient of the pool, from which the next buffer is chosen."""
        return {"reference": ctx.gradient(ctx.pool, ctx.draw_view())}, {}

    def server_round(self, sums: State, state: State, info: RoundInfo) -> State:
        """Take the clients' mean; the old reference stays where nobody kept anything."""
        found = sums["reference"] / info.parameters.dtype.type(info.weight)
        return {"reference": found} if found.any() else state

    def server_period(self, sums: State, state: State, info: RoundInfo) -> State:
        """Take the clients' mean."""
        return self.server_round(sums, state, info)
