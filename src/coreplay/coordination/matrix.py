"""What coordination asks of a gradient matrix: its gram and two products. Arrays are made to answer likewise."""

from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay.errors import InputError
from coreplay.selection.pool import HasGram, make_pool, unit_rows
from coreplay.validation import whole_number

Floats = NDArray[np.float64]


@runtime_checkable
class GradientMatrix(Protocol):
    """A matrix G whose columns are the unit gradients of a pool, known by its products."""

    def gram(self) -> Any:
        """Return GᵀG."""

    def combine(self, x: Any, /) -> Any:
        """Return Gx."""

    def project(self, v: Any, /) -> Any:
        """Return Gᵀv."""

    def __len__(self) -> int: ...


class ArrayGradients:
    """The gradient matrix of an (n, d) array, one row per sample, in any scale.

    >>> G = ArrayGradients([[3.0, 4.0], [0.0, 2.0]])
    >>> G.combine([1, 1]).round(6).tolist(), G.project([0.0, 1.0]).round(6).tolist()
    ([0.6, 1.8], [0.8, 1.0])
    """

    def __init__(self, gradients: ArrayLike) -> None:
        self._unit = unit_rows(gradients, "gradients")

    @classmethod
    def of_unit(cls, unit: NDArray[Any]) -> "ArrayGradients":
        """Return the matrix of rows that are unit vectors already, or zero, without a copy."""
        rows = cls.__new__(cls)
        rows._unit = unit
        return rows

    def __len__(self) -> int:
        return len(self._unit)

    @property
    def dimension(self) -> int:
        """The length of a gradient."""
        return int(self._unit.shape[1])

    def gram(self) -> Floats:
        """Return GᵀG."""
        return np.asarray(self._unit @ self._unit.T, dtype=np.float64)

    def combine(self, x: ArrayLike) -> NDArray[Any]:
        """Return Gx."""
        return np.asarray(np.asarray(x, dtype=self._unit.dtype) @ self._unit)

    def project(self, v: ArrayLike) -> NDArray[Any]:
        """Return Gᵀv."""
        return np.asarray(self._unit @ np.asarray(v, dtype=self._unit.dtype))


def matrix_of(gradients: ArrayLike | GradientMatrix) -> GradientMatrix:
    """Return a gradient matrix as it is, and an array as one."""
    if isinstance(gradients, GradientMatrix):
        return gradients
    if isinstance(gradients, HasGram):
        raise InputError(
            f"a client's gradients need combine and project besides gram: {type(gradients).__name__} has none"
        )
    return ArrayGradients(gradients)


class Candidates:
    """What a client chooses from: its gradient matrix, the gram (computed once for all rounds) and its budget."""

    def __init__(self, gradients: ArrayLike | GradientMatrix, budget: int) -> None:
        self.matrix = matrix_of(gradients)
        self.size = len(self.matrix)
        self.budget = whole_number(budget, "budget", least=1)
        self._gram: Floats | None = None

    @property
    def gram(self) -> Floats:
        """The cosines between all gradients."""
        if self._gram is None:
            self._gram = make_pool(self.matrix).gram
        return self._gram

    @cached_property
    def dimension(self) -> int:
        """The length of a gradient, and so of every contribution and broadcast."""
        known = getattr(self.matrix, "dimension", None)
        return len(self.combine(np.zeros(self.size))) if known is None else int(known)

    def project(self, vector: NDArray[Any]) -> Floats:
        """Return Gᵀv."""
        return np.asarray(self.matrix.project(vector), dtype=np.float64)

    def combine(self, x: Floats) -> NDArray[np.float32]:
        """Return Gx as it is sent."""
        return np.ascontiguousarray(self.matrix.combine(x), dtype="<f4")
