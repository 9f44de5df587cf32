"""The dense operator: the gradients themselves, by plain autograd, one sample at a time. The reference."""

import torch
from torch import Tensor

from coreplay.errors import InputError
from coreplay.gradients.alone import gradients_alone
from coreplay.gradients.operator import GradientMatrix
from coreplay.gradients.problem import Problem, check_finite, check_reached
from coreplay.gradients.undisturbed import undisturbed


class DenseGradients(GradientMatrix):
    """Keeps one row of numbers a sample, as long as the model has parameters."""

    def __init__(self, problem: Problem, *, memory_limit: int) -> None:
        needed = problem.n * problem.selected.dimension * problem.selected.like.element_size()
        if needed > memory_limit:
            raise InputError(
                f"memory_limit must be at least {needed} bytes for {problem.n} explicit gradients: "
                f"got {memory_limit}; use backend='factored', or select fewer parameters"
            )
        self._values = problem.selected.like.new_zeros(problem.n, problem.selected.dimension)
        reached = False
        with undisturbed(problem.model):
            for i in range(problem.n):
                for name, values in gradients_alone(problem, i, i + 1, problem.selected.parameters).items():
                    self._values[i, problem.selected.slices[name]] = values[0]
                    reached = True
        check_reached(reached)
        self._norms = torch.linalg.vector_norm(self._values, dim=1, dtype=torch.float64).cpu()
        check_finite(self._norms, 0, "gradient", "the loss is finite there but has no derivative; smooth it")

    @property
    def dimension(self) -> int:
        """Number of selected parameters."""
        return self._values.shape[1]

    def _like(self) -> Tensor:
        return self._values

    def _gram(self) -> Tensor:
        return (self._values @ self._values.T).double()

    def _combine(self, weights: Tensor) -> Tensor:
        return weights @ self._values

    def _project(self, vector: Tensor) -> Tensor:
        return self._values @ vector
