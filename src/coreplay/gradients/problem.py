"""What a gradient matrix is of: a model, a loss, a pool and the selected parameters."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from coreplay.errors import InputError
from coreplay.gradients.batches import part
from coreplay.gradients.selected import Selected
from coreplay.gradients.trees import tensors_in

PerSampleLoss: TypeAlias = Callable[[Any, Any], Tensor]
_SHOWN = 5  # samples that an error names


@dataclass(frozen=True)
class Problem:
    """A model, a per-sample loss, a batch of `n` samples, and which parameters to differentiate by.

    `batch_first`: the caller's word that every layer has the samples in the first dimension, in order. `looks`: what
    first looks at samples told, by the shapes of a sample, for all pools of the same model, loss and parameters.
    """

    model: nn.Module
    per_sample_loss: PerSampleLoss
    batch: Any
    n: int
    selected: Selected
    batch_first: bool = False
    looks: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def storages(self) -> frozenset[int]:
        """The memory that is there anyway: the model's and the batch's."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *tensors_in(self.batch)]
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)

    def losses(self, start: int, stop: int) -> Tensor:
        """Return the losses of the samples `start` up to `stop`, checked."""
        losses = self.per_sample_loss(self.model, part(self.batch, start, stop))
        count = stop - start
        if not isinstance(losses, Tensor):
            raise InputError(f"per_sample_loss must return a tensor: got {type(losses).__name__}")
        if losses.shape != (count,):
            given = "" if losses.dim() == 0 or count == self.n else f" when called with {count} of them"
            hint = "; use reduction='none' and sum within each sample" if losses.dim() != 1 else ""
            raise InputError(
                f"per_sample_loss must return one loss a sample, shape ({self.n},) for this batch of {self.n}: "
                f"got shape {tuple(losses.shape)}{given}{hint}"
            )
        if not losses.is_floating_point():
            raise InputError(f"per_sample_loss must return floating-point losses: got {losses.dtype}")
        check_finite(losses.detach(), start, "loss", "check these samples, or clip the loss")
        return losses


def check_reached(reached: bool) -> None:
    """Raise the error for a loss that has no gradient at all; single samples may have none."""
    if not reached:
        raise InputError(
            "per_sample_loss must depend on the selected parameters: got losses through which autograd reaches none of "
            "them, for any sample; compute them from the model's output without detach(), item(), numpy or "
            "torch.no_grad(), or select parameters that the loss uses"
        )


def check_finite(values: Tensor, start: int, what: str, remedy: str) -> None:
    """Raise the error that names the samples whose value is not finite."""
    finite = torch.isfinite(values)
    if bool(finite.all()):
        return
    bad = (~finite).nonzero().flatten().tolist()
    found = ", ".join(f"sample {start + i}: {values[i].item()}" for i in bad[:_SHOWN])
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    raise InputError(f"the {what} must be finite for every sample: got {found}{more}; {remedy}")
