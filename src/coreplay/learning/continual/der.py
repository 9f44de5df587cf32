"""Dark experience replay, DER and DER++ (Buzzega et al. 2020): kept samples keep the outputs of their time.

When a sample is kept, the model's outputs for it are stored with it. A step's loss gains

    alpha · mean over kept samples of ‖s − z‖² / number of outputs

with z the stored and s the current logits, and kept samples count beta times in the plain loss (DER: 0, DER++: 0.5).

The logits of each masked position of a language model would be far too large. There the masks are those of one fixed
view, the `top_k` largest log-probabilities are stored, and the distance is KL(stored ‖ current) over these pieces and
the remaining mass as one more piece. A sample then takes 8 · top_k · positions bytes, where positions is the largest
number of masked pieces in a sample.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from coreplay.data import Samples
from coreplay.errors import InputError
from coreplay.learning.context import LearningContext, Step
from coreplay.learning.continual.distillation import check_logits
from coreplay.learning.hooks import HookError, LearningHook, NotNegative, continual_method
from coreplay.tasks import Task

VIEW = 2**62 + 1  # of the stored outputs; training and evaluation never draw it
LARGEST_ID = 2**24  # ids are stored as float32, which is exact up to here
Stored = dict[str, NDArray[np.float32]]


@continual_method("der")
@dataclass(frozen=True, kw_only=True)
class DER(LearningHook):
    """Keep the outputs of kept samples with them, and stay near those outputs.

    Parameters
    ----------
    alpha
        The weight of the distance to the stored outputs.
    beta
        The weight of kept samples in the plain loss.
    top_k
        The number of log-probabilities per masked position that are stored for language models.
    """

    alpha: NotNegative = 0.5
    beta: NotNegative = 0.0
    top_k: Annotated[int, Field(ge=1)] = 20
    name: ClassVar[str] = "der"
    from_period: ClassVar[int] = 1
    extra_passes: ClassVar[str] = "one forward pass per kept sample when it is stored; for language models one per step"

    def check_task(self, task: Task, batch: Any, outputs: Any) -> None:
        """Refuse outputs that are not logits, and a `top_k` larger than the vocabulary."""
        check_logits(self.name, task, outputs)
        if task.output_rows(batch) is not None and not self.top_k < outputs.shape[1] <= LARGEST_ID:
            limit = min(outputs.shape[1] - 1, LARGEST_ID)
            raise InputError(
                f"option 'top_k' of continual method {self.name!r} must be at most {limit}, less than the "
                f"{outputs.shape[1]} pieces of the vocabulary: got {self.top_k}"
            )

    def keep(self, ctx: LearningContext, kept: Samples) -> Samples:
        """Store the outputs of samples that have none yet; those of earlier periods stay as they are."""
        columns = self._outputs_of(ctx, kept)
        for name, column in columns.items():
            old = kept.extras.get(name)
            if old is not None:
                stored = _is_stored(old)
                column[stored] = _fitting(old, column, name)[stored]
        return kept.with_columns(**columns)

    def _outputs_of(self, ctx: LearningContext, samples: Samples) -> Stored:
        batch = ctx.task.collate(samples, VIEW)
        logits, owners = ctx.outputs(batch).float(), ctx.task.output_rows(batch)
        if owners is None:
            return {"der_logits": logits.numpy()}
        shape = (len(samples), int(ctx.task.largest_weight()), self.top_k)
        found = {name: np.full(shape, np.nan, dtype=np.float32) for name in ("der_pieces", "der_log_probabilities")}
        values, pieces = functional.log_softmax(logits, dim=-1).topk(self.top_k, dim=-1)
        at = (owners.numpy(), _positions(owners).numpy())
        found["der_pieces"][at], found["der_log_probabilities"][at] = pieces.numpy(), values.numpy()
        return found

    def loss(self, ctx: LearningContext, step: Step) -> Tensor | None:
        """Return the distance to the stored outputs, and correct the weight of kept samples in the plain loss."""
        kept = torch.from_numpy(step.samples.arrived < ctx.period)
        if not kept.any():
            return None
        found = (self.beta - 1) * step.losses[kept].sum() / step.weights.sum()
        extras = step.samples.extras
        if "der_logits" in extras:
            rows = torch.from_numpy(_is_stored(extras["der_logits"]))
            wanted = torch.from_numpy(_fitting(extras["der_logits"], step.outputs, "der_logits"))
            if rows.any():
                found = found + self.alpha * functional.mse_loss(step.outputs[rows], wanted[rows])
        elif "der_pieces" in extras:
            stored = step.samples[np.flatnonzero(_is_stored(extras["der_pieces"]))]
            if len(stored):
                found = found + self.alpha * self._divergence(ctx, stored)
        return found

    def _divergence(self, ctx: LearningContext, stored: Samples) -> Tensor:
        batch = ctx.task.collate(stored, VIEW)
        owners = ctx.task.output_rows(batch)
        assert owners is not None, "the task stored positions"
        at = (owners, _positions(owners))
        pieces = torch.from_numpy(stored.extras["der_pieces"])[at].long()
        wanted = torch.from_numpy(stored.extras["der_log_probabilities"])[at]
        logits = ctx.task.outputs(ctx.model, batch)
        if logits.shape[1] <= int(pieces.max()):
            raise HookError(f"'der': stored outputs are of a model with more pieces than the {logits.shape[1]} of this")
        found = functional.log_softmax(logits, dim=-1).gather(1, pieces)
        wanted, found = (torch.cat([x, _remaining(x)], dim=1) for x in (wanted, found))
        return functional.kl_div(found, wanted, reduction="batchmean", log_target=True)


@continual_method("der_pp")
@dataclass(frozen=True, kw_only=True)
class DERpp(DER):
    """DER whose kept samples also count in the plain loss.

    Parameters
    ----------
    alpha
        The weight of the distance to the stored outputs.
    beta
        The weight of kept samples in the plain loss.
    top_k
        The number of log-probabilities per masked position that are stored for language models.
    """

    beta: NotNegative = 0.5
    name: ClassVar[str] = "der_pp"


def _is_stored(column: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which samples have stored outputs; the others have NaN."""
    return ~np.isnan(column.reshape(len(column), -1)[:, 0])


def _fitting(column: NDArray[np.float32], like: Any, name: str) -> NDArray[np.float32]:
    if column.shape[1:] != tuple(like.shape[1:]):
        raise HookError(
            f"'der': column {name!r} was stored with shape {column.shape[1:]} per sample, this model and these "
            f"options give {tuple(like.shape[1:])}: start with an empty buffer"
        )
    return column


def _positions(owners: Tensor) -> Tensor:
    """Return the number of each output row within its sample; rows of one sample are consecutive."""
    first = torch.searchsorted(owners, owners)
    return torch.arange(len(owners)) - first


def _remaining(log_probabilities: Tensor) -> Tensor:
    """Return the logarithm of the mass that is left."""
    left = 1 - log_probabilities.exp().sum(dim=1, keepdim=True)
    return left.clamp(min=1e-6).log()
