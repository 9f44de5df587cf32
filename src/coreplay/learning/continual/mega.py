"""MEGA-I (Guo et al. 2020): new and kept samples weighed by their losses.

Steps train on new samples. With ℓ and g the loss and gradient of a step, and ℓ_ref and g_ref those of kept samples,
the step goes along g + (ℓ_ref / ℓ) g_ref, or along g_ref alone once ℓ is below `sensitivity`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from coreplay.data import Samples
from coreplay.learning.context import LearningContext, Step
from coreplay.learning.continual.gem import drawn, new_batches
from coreplay.learning.hooks import LearningHook, NotNegative, continual_method


@continual_method("mega")
@dataclass(frozen=True, kw_only=True)
class MEGA(LearningHook):
    """Mix the gradients of new and kept samples in proportion to their losses.

    Parameters
    ----------
    reference_samples
        The number of kept samples, drawn at random in each step, whose gradient is the reference.
    sensitivity
        The loss of new samples below which only kept ones count.
    """

    reference_samples: Annotated[int, Field(ge=1)] = 64
    sensitivity: NotNegative = 1e-4
    from_period: ClassVar[int] = 1
    extra_passes: ClassVar[str] = "one forward and backward pass over kept samples per step"

    def batches(self, ctx: LearningContext, epoch: int) -> Iterator[Samples]:
        """Train on new samples."""
        return new_batches(ctx)

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Return g + (ℓ_ref / ℓ) g_ref."""
        if not len(ctx.kept):
            return gradient
        samples, view = drawn(ctx, ctx.kept, self.reference_samples), ctx.draw_view()
        reference, loss = ctx.gradient(samples, view), float(step.mean_loss.detach())
        if loss <= self.sensitivity:
            return reference
        return gradient.add_(reference, alpha=float(ctx.losses(samples, view).mean()) / loss)
