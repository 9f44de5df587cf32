"""L2 to the period's start: the plainest penalty on change, a baseline for EWC (Kirkpatrick et al. 2017, section 2.1).

The gradient gains strength · (w − w_start), where w_start is the model that the period began with. The first
period starts from an untrained model and has no penalty.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coreplay.learning.context import LearningContext, Step
from coreplay.learning.hooks import LearningHook, NotNegative, continual_method


@continual_method("l2")
@dataclass(frozen=True, kw_only=True)
class L2(LearningHook):
    """Pull all parameters alike to the model of the period's start.

    Parameters
    ----------
    strength
        The weight of the penalty ½‖w − w_start‖².
    """

    strength: NotNegative = 0.1
    from_period: ClassVar[int] = 1
    needs_period_start: ClassVar[bool] = True

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Add the gradient of the penalty."""
        return gradient.add_(ctx.parameters - ctx.period_start, alpha=self.strength)
