"""Elastic weight consolidation (Kirkpatrick et al. 2017) at each client, as a plugin."""

from dataclasses import dataclass

import torch

import coreplay
from coreplay.learning import LearningHook


@coreplay.continual_method("own_ewc")
@dataclass(frozen=True, kw_only=True)
class EWC(LearningHook):
    """Pull each parameter to its value after the last period, by its Fisher information."""

    strength: float = 1.0

    def gradient(self, ctx, gradient, step):
        if not ctx.state:
            return gradient
        fisher, anchor = (torch.from_numpy(ctx.state[name]) for name in ("fisher", "anchor"))
        return gradient + self.strength * fisher * (ctx.parameters - anchor)

    def finish_period(self, ctx):
        squares = [ctx.gradient(ctx.pool[[k]]).square() for k in range(len(ctx.pool))]
        fisher = torch.stack(squares).mean(dim=0).numpy()
        return {}, {"fisher": fisher, "anchor": ctx.parameters.numpy().copy()}
