"""EWC (Kirkpatrick et al. 2017) and online EWC (Schwarz et al. 2018), at each client from its own data.

After period t a client computes the diagonal F_t of the Fisher information at the model w_t. Later steps add the
gradient of

    strength/2 · Σ_t (w − w_t)ᵀ F_t (w − w_t),    that is    strength · (A w − B),  A = Σ F_t,  B = Σ F_t w_t,

so two vectors are kept, however many periods there are. Online EWC decays the past and has one anchor, the last model:
A ← decay · A + F_t, B ← A w_t.

A step of rate η on a stiff penalty overshoots, and training diverges. So where η · strength · A is above 1, the
penalty's gradient is divided by it: the step then goes to the minimum of the penalty, B / A, and no further.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from coreplay.learning.context import LearningContext, State, Step
from coreplay.learning.hooks import LearningHook, NotNegative, Sums, Vector, continual_method


@continual_method("ewc")
@dataclass(frozen=True, kw_only=True)
class EWC(LearningHook):
    """Pull each parameter to its values after earlier periods, by its Fisher information there.

    Parameters
    ----------
    strength
        The weight of the penalty.
    max_samples
        The number of samples of the pool, drawn at random, that the Fisher information is estimated from.
    """

    strength: NotNegative = 10.0
    max_samples: Annotated[int, Field(ge=1)] = 64
    from_period: ClassVar[int] = 1
    extra_passes: ClassVar[str] = "one backward pass per sample at the end of a period"
    keeps_state: ClassVar[bool] = True

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Add strength · (A w − B)."""
        if not ctx.state:
            return gradient
        return self.penalised(ctx, gradient, *(torch.from_numpy(ctx.state[name]) for name in ("precision", "pull")))

    def penalised(self, ctx: LearningContext, gradient: Tensor, precision: Tensor, pull: Tensor) -> Tensor:
        """Add the gradient of the penalty, limited where a step would overshoot."""
        found = (precision * ctx.parameters).sub_(pull).mul_(self.strength)
        stiffness = precision * (ctx.settings.learning_rate * self.strength)
        return gradient.add_(found.div_(stiffness.clamp_(min=1.0)))

    def finish_period(self, ctx: LearningContext) -> tuple[Sums, State]:
        """Add the Fisher information of this period to what the client keeps."""
        return {}, self.merged(ctx.state, ctx.fisher(self.max_samples).numpy(), ctx.parameters.numpy())

    def merged(self, state: State, fisher: Vector, anchor: Vector) -> State:
        """Return A and B after a period."""
        if not state:
            return {"precision": fisher, "pull": fisher * anchor}
        return {"precision": state["precision"] + fisher, "pull": state["pull"] + fisher * anchor}


@continual_method("online_ewc")
@dataclass(frozen=True, kw_only=True)
class OnlineEWC(EWC):
    """EWC with one anchor, the model after the last period, and a Fisher information that decays.

    Parameters
    ----------
    strength
        The weight of the penalty.
    max_samples
        The number of samples of the pool, drawn at random, that the Fisher information is estimated from.
    decay
        The part of the Fisher information that is left after another period.
    """

    decay: Annotated[float, Field(ge=0, le=1)] = 0.9

    def merged(self, state: State, fisher: Vector, anchor: Vector) -> State:
        """Return A and B after a period."""
        precision = fisher + self.decay * state["precision"] if state else fisher
        return {"precision": precision, "pull": precision * anchor}
