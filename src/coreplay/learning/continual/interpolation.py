"""Interpolation of the models before and after a period, at the server (as in WiSE-FT, Wortsman et al. 2022).

The period's model becomes (1 − weight) · w_before + weight · w_after, before it is evaluated and the next period starts
from it. The first period starts from an untrained model and is left alone.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from coreplay.learning.hooks import LearningHook, Vector, continual_method


@continual_method("interpolation")
@dataclass(frozen=True, kw_only=True)
class Interpolation(LearningHook):
    """Go only a part of the way from the model before a period to the one after it.

    Parameters
    ----------
    weight
        The weight of the model after the period. 1 changes nothing.
    """

    weight: Annotated[float, Field(gt=0, le=1)] = 0.7
    from_period: ClassVar[int] = 1

    def finish_model(self, model: Vector, period_model: Vector) -> Vector:
        """Return the point between both."""
        number = model.dtype.type(self.weight)
        return period_model + number * (model - period_model)
