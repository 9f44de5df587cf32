"""A-GEM (Chaudhry et al. 2019), as a plugin."""

from dataclasses import dataclass

import coreplay
from coreplay.learning import LearningHook


@coreplay.continual_method("own_a_gem")
@dataclass(frozen=True, kw_only=True)
class AGEM(LearningHook):
    """Take away the part of the gradient that would raise the loss on the buffer."""

    def gradient(self, ctx, gradient, step):
        if not len(ctx.kept):
            return gradient
        reference = ctx.gradient(ctx.kept)
        overlap = gradient @ reference
        return gradient if overlap >= 0 else gradient - overlap / (reference @ reference) * reference
