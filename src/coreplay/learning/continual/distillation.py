"""Distillation from an earlier model (LwF: Li and Hoiem 2016; in federated learning: Usmanova et al. 2021).

With teacher outputs z and student outputs s at the same inputs, and temperature T, a step's loss gains

    strength · T² · mean over output rows of KL(softmax(z / T) ‖ softmax(s / T)).

For language models the rows are the positions that carry loss. The teacher is the global model at the start of the
period, which every client has anyway; or a moving average of the global model over rounds; or the mean of the two
losses. Nothing is stored, and a step costs one forward pass more. The first period starts from an untrained model and
has no teacher.

A teacher holds the model back where it has much to learn. With ``where = "better"`` only the samples count whose loss
the teacher has lower than the student; the mean is still over all rows, so that the loss vanishes with them. The
student's loss is that of the training step: with dropout it is higher, and more samples count.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from coreplay.errors import InputError
from coreplay.learning.context import LearningContext, State, Step
from coreplay.learning.hooks import LearningHook, NotNegative, RoundInfo, continual_method
from coreplay.tasks import Task


@continual_method("distillation")
@dataclass(frozen=True, kw_only=True)
class Distillation(LearningHook):
    """Keep the outputs near those of the model at the period's start, or of a moving average.

    Parameters
    ----------
    strength
        The weight of the distillation loss.
    temperature
        Divides the logits of teacher and student. Higher values give small probabilities more influence.
    teacher
        The teacher: "period_start", "average" (a moving average of the global model over rounds), or "both".
    samples
        The samples to distil on: "all", "new" or "kept".
    where
        On which of these samples: "all", or "better", where the teacher's loss is lower than the student's.
    decay
        The part of the moving average that is left after another round.
    """

    strength: NotNegative = 1.0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    teacher: Literal["period_start", "average", "both"] = "period_start"
    samples: Literal["all", "new", "kept"] = "all"
    where: Literal["all", "better"] = "all"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    from_period: ClassVar[int] = 1
    needs_period_start: ClassVar[bool] = True
    extra_passes: ClassVar[str] = "one forward pass per step and teacher"

    def check_task(self, task: Task, batch: Any, outputs: Any) -> None:
        """Refuse outputs that are not logits."""
        check_logits("distillation", task, outputs)

    def loss(self, ctx: LearningContext, step: Step) -> Tensor | None:
        """Return the distillation loss."""
        rows = step.rows(ctx, self.samples)
        if not self.strength or (rows is not None and not rows.any()):
            return None
        assert ctx.period_model is not None, "needs_period_start"
        teachers = []
        if self.teacher != "average":
            teachers.append(ctx.period_model)
        if self.teacher != "period_start":
            teachers.append(ctx.received.get("average", ctx.period_model))
        found = [self._divergence(ctx, step, ctx.at(values).outputs(step.batch), rows) for values in teachers]
        return self.strength * torch.stack(found).mean()

    def _divergence(self, ctx: LearningContext, step: Step, teacher: Tensor, rows: Tensor | None) -> Tensor:
        student, count = step.outputs, len(step.outputs) if rows is None else int(rows.sum())
        if self.where == "better":
            better = ctx.task.losses(teacher, step.batch) < ctx.task.losses(student.detach(), step.batch)
            owners = ctx.task.output_rows(step.batch)
            better = better if owners is None else better[owners]
            rows = better if rows is None else better & rows
        if rows is not None:
            teacher, student = teacher[rows], student[rows]
        wanted = functional.softmax(teacher / self.temperature, dim=-1)
        got = functional.log_softmax(student / self.temperature, dim=-1)
        return functional.kl_div(got, wanted, reduction="sum") / count * self.temperature**2

    def broadcast(self, state: State) -> State:
        """Send the moving average, if there is one."""
        return state

    def server_round(self, sums: State, state: State, info: RoundInfo) -> State:
        """Move the average towards the new model; it starts with the model after the second period's first round."""
        if self.teacher == "period_start":
            return {}
        decay = np.asarray(self.decay, dtype=info.parameters.dtype)
        average = state.get("average", info.parameters)
        return {"average": decay * average + (1 - decay) * info.parameters}


def check_logits(method: str, task: Task, outputs: Any) -> None:
    """Refuse a task whose outputs are not rows of logits."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] < 2:
        got = f"a tensor of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(
            f"continual method {method!r} needs outputs with one row of at least two logits per sample or position: "
            f"{type(task).__name__}.outputs returns {got}"
        )
