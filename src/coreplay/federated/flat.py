"""A model as one vector: the form in which it is sent, summed, stored and trained.

The trainable parameters and then the floating-point buffers (running means and the like) of a model become views into
one vector, each beginning at a multiple of 64 bytes, and so do the gradients. To load a model is then one copy, an
optimiser step one operation, and nothing is allocated in between. Frozen parameters stay in the model and are not part
of the vector; neither are whole-number buffers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coreplay.errors import InputError

Vector = NDArray[np.floating]
ALIGNMENT = 16  # numbers


class FlatModel:
    """A model whose parameters are views into the vector `values`, and their gradients into `gradients`.

    >>> flat = FlatModel(nn.Linear(3, 2))
    >>> flat.size, flat.trained, sum(p.numel() for p in flat.model.parameters())
    (32, 32, 8)
    >>> flat.load(np.ones(32, np.float32))
    >>> flat.model.bias.tolist()
    [1.0, 1.0]
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise InputError("the model has no trainable parameter: set requires_grad=True on those to train")
        buffers = [b for b in model.buffers() if b.is_floating_point()]
        kinds = {tensor.dtype for tensor in [*parameters, *buffers]}
        if len(kinds) > 1:
            raise InputError(f"the model mixes number types {sorted(map(str, kinds))}: convert it to one of them")
        self.trained, self.size = _room(parameters), _room([*parameters, *buffers])
        self.values = torch.zeros(self.size, dtype=parameters[0].dtype)
        self.gradients = torch.zeros(self.trained, dtype=parameters[0].dtype)
        at = 0
        for tensor in [*parameters, *buffers]:
            end = at + tensor.numel()
            self.values[at:end] = tensor.detach().reshape(-1)
            tensor.data = self.values[at:end].view(tensor.shape)
            if at < self.trained:
                tensor.grad = self.gradients[at:end].view(tensor.shape)
            at = _aligned(end)
        self._whole = nn.Parameter(self.values[: self.trained])
        self._whole.grad = self.gradients

    @property
    def parameter(self) -> nn.Parameter:
        """All trainable numbers as one parameter, for an optimiser."""
        return self._whole

    def load(self, values: Vector | Tensor) -> None:
        """Copy the vector into the model."""
        given = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        if given.shape != self.values.shape:
            raise InputError(f"the model has {self.size} numbers: got {tuple(given.shape)}; is it another model's?")
        self.values.copy_(given)

    def numpy(self) -> Vector:
        """Return the vector itself, not a copy, as a numpy array."""
        return self.values.numpy()


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _room(tensors: Sequence[Tensor]) -> int:
    return sum(_aligned(tensor.numel()) for tensor in tensors)
