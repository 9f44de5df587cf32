"""A model as one vector: the form in which it is sent, summed, stored and trained.

The trainable parameters and then the floating-point buffers (running means and the like) of a model become views into
one vector, each beginning at a multiple of 64 bytes. To load a model, or to take the difference of two, is then one
operation. Frozen parameters stay in the model and are not part of the vector; neither are whole-number buffers.
Gradients stay apart: autograd hands them over without a copy, which adding them into one vector would cost.
"""

from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coreplay.errors import InputError

Vector = NDArray[np.floating]
ALIGNMENT = 16  # numbers


class FlatModel:
    """A model whose trainable parameters, and floating-point buffers, are views into the vector `values`.

    The parameters are the first `trainable` numbers of it.

    >>> flat = FlatModel(nn.Linear(3, 2))
    >>> flat.size, flat.trainable, len(flat.parameters), sum(p.numel() for p in flat.parameters)
    (32, 32, 2, 8)
    >>> flat.load(np.ones(32, np.float32))
    >>> flat.model.bias.tolist()
    [1.0, 1.0]
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model.train()  # a model may have a mode of its own in which parts stay frozen
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("the model has no trainable parameter: set requires_grad=True on those to train")
        buffers = [b for b in model.buffers() if b.is_floating_point()]
        tensors: list[Tensor] = [*self.parameters, *buffers]
        kinds = {tensor.dtype for tensor in tensors}
        if len(kinds) > 1:
            raise InputError(f"the model mixes number types {sorted(map(str, kinds))}: convert it to one of them")
        self.trainable = sum(_aligned(tensor.numel()) for tensor in self.parameters)
        self.size = sum(_aligned(tensor.numel()) for tensor in tensors)
        self.values = torch.zeros(self.size, dtype=tensors[0].dtype)
        self.source: Tensor | None = None  # where a twin has its values from
        self._places: list[slice] = []
        at = 0
        for tensor in tensors:
            end = at + tensor.numel()
            self.values[at:end] = tensor.detach().reshape(-1)
            tensor.data = self.values[at:end].view(tensor.shape)
            self._places.append(slice(at, end))
            at = _aligned(end)

    def load(self, values: Vector | Tensor) -> None:
        """Copy the vector into the model."""
        if tuple(values.shape) != tuple(self.values.shape):
            raise InputError(f"the model has {self.size} numbers: got {tuple(values.shape)}; is it another model's?")
        if isinstance(values, np.ndarray):
            np.copyto(self.numpy(), values)  # by numpy: torch warns of memory that must not be written
        else:
            self.values.copy_(values)

    @cached_property
    def twin(self) -> "FlatModel":
        """A second instance in evaluation mode, for the outputs or gradients of other parameters than the current."""
        made = FlatModel(deepcopy(self.model))
        made.model.eval()
        return made

    @cached_property
    def batch_norms(self) -> list[nn.Module]:
        """The layers with running statistics of their inputs."""
        return [layer for layer in self.model.modules() if isinstance(layer, _BatchNorm)]

    def gradient(self) -> Tensor:
        """Return the gradients of the parameters as one vector, zero where there is none."""
        return self.joined([parameter.grad for parameter in self.parameters])

    def joined(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Return one tensor per parameter as one vector, zero where there is None."""
        found = torch.zeros(self.trainable, dtype=self.values.dtype)
        for gradient, place in zip(gradients, self._places, strict=False):
            if gradient is not None:
                found[place] = gradient.reshape(-1)
        return found

    def set_gradient(self, gradient: Tensor, which: list[bool]) -> None:
        """Give these parameters their parts of a vector as gradients; the others get none."""
        for parameter, place, given in zip(self.parameters, self._places, which, strict=False):
            parameter.grad = gradient[place].view(parameter.shape) if given else None

    def clear_gradients(self) -> None:
        """Drop the gradients of all parameters."""
        for parameter in self.parameters:
            parameter.grad = None

    def numpy(self) -> Vector:
        """Return the vector itself, not a copy, as a numpy array."""
        return self.values.numpy()


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
