"""The gradient matrix as an operator: what selection and coordination may ask of it."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coreplay.errors import InputError

Array = npt.NDArray[np.floating]


class GradientMatrix(ABC):
    """A matrix G whose columns are the unit loss gradients of a pool, known by its products.

    A sample whose gradient is zero has a zero column. All results are numpy arrays.
    """

    _norms: Tensor  # raw norms, float64, on the CPU

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Length of a column, and so of `combine`'s result and of `project`'s argument."""

    @abstractmethod
    def _like(self) -> Tensor:
        """Return an empty tensor of the dtype and device that the products are computed in."""

    @abstractmethod
    def _gram(self) -> Tensor:
        """Return the inner products of the raw gradients, float64."""

    @abstractmethod
    def _combine(self, weights: Tensor) -> Tensor:
        """Return the combination of the raw gradients with these weights."""

    @abstractmethod
    def _project(self, vector: Tensor) -> Tensor:
        """Return the inner products of the raw gradients with the vector."""

    def __len__(self) -> int:
        return len(self._norms)

    def norms(self) -> Array:
        """Return the norms of the raw gradients, before they are scaled to unit length."""
        return self._norms.numpy().copy()

    def gram(self) -> Array:
        """Return GᵀG, (n, n): cosines between gradients; the diagonal is 1, or 0 for a zero gradient."""
        scale = self._scale()
        result = self._gram().cpu() * scale.unsqueeze(1) * scale
        result.fill_diagonal_(0.0)
        result += torch.diag((self._norms > 0).double())
        return result.numpy()

    def combine(self, x: npt.ArrayLike | Tensor) -> Array:
        """Return Gx, the sum of the unit gradients with weights `x`, one flat vector."""
        weights = _vector(x, "x", len(self), "samples in the pool")
        return self._combine((weights * self._scale()).to(self._like())).cpu().numpy()

    def project(self, v: npt.ArrayLike | Tensor) -> Array:
        """Return Gᵀv, the inner product of every sample's unit gradient with `v`."""
        vector = _vector(v, "v", self.dimension, "numbers in a column")
        return (self._project(vector.to(self._like())).cpu().double() * self._scale()).numpy()

    def _scale(self) -> Tensor:
        return torch.where(self._norms > 0, 1.0 / self._norms, 0.0)


def _vector(value: npt.ArrayLike | Tensor, name: str, length: int, meaning: str) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
    else:
        array = np.asarray(value)
        if array.dtype not in (np.float32, np.float64) or not array.flags.writeable:
            array = array.astype(np.float64)  # a copy: torch cannot share what is read-only
        tensor = torch.from_numpy(np.ascontiguousarray(array))
    if tensor.shape != (length,):
        raise InputError(f"{name} must have shape ({length},), the {meaning}: got {tuple(tensor.shape)}")
    if not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
        raise InputError(f"{name} must be finite: got {int((~torch.isfinite(tensor)).sum())} values that are not")
    return tensor
