"""Dark experience replay (Buzzega et al. 2020), as a plugin."""

from dataclasses import dataclass

import torch

import coreplay
from coreplay.learning import LearningHook


@coreplay.continual_method("own_der")
@dataclass(frozen=True, kw_only=True)
class DER(LearningHook):
    """Keep the outputs of kept samples, and pull the model's outputs towards them."""

    alpha: float = 0.5

    def keep(self, ctx, kept):
        new = ctx.outputs(ctx.task.collate(kept)).numpy()
        if "logits" in kept.extras:  # those of an earlier period stay
            old = kept.extras["logits"]
            new[kept.arrived < ctx.period] = old[kept.arrived < ctx.period]
        return kept.with_columns(logits=new)

    def loss(self, ctx, step):
        if "logits" not in step.samples.extras:
            return None
        stored = torch.from_numpy(step.samples.extras["logits"])
        rows = ~torch.isnan(stored).any(dim=1)
        if not rows.any():
            return None
        return self.alpha * (step.outputs[rows] - stored[rows]).square().mean()
