"""The sketched operator: every gradient as `size` numbers, by a random projection shared through a seed.

Every entry of a gradient is hashed to one of `size` sums with a random sign (see `projections`). The sketches of all
parameters are added up, so that ⟨s_i, s_j⟩ estimates ⟨g_i, g_j⟩ without bias, and the room goes to the parameters with
the large gradients, whichever these turn out to be.
"""

import torch
from torch import Tensor

from coreplay.errors import InputError
from coreplay.gradients.operator import Array, GradientMatrix
from coreplay.gradients.passes import Passes
from coreplay.gradients.problem import Problem, check_reached
from coreplay.gradients.projections import Projections


class SketchedGradients(GradientMatrix):
    """Keeps (n, size) numbers; columns are unit vectors in the sketch, `norms()` are the true gradients'."""

    def __init__(self, problem: Problem, *, memory_limit: int, size: int, seed: int) -> None:
        if size < 1:
            raise InputError(f"size must be at least 1, the numbers kept of a sample: got {size}")
        passes = Passes(problem, memory_limit)
        projections = Projections(size, seed, problem.selected.like)
        norms, sketches, reached = [], [], False
        with passes.visit():
            for start, stop in passes.ranges:
                chunk = passes.chunk(start, stop)
                norms.append(passes.norms(chunk))
                reached |= chunk.reached
                sketch = problem.selected.like.new_zeros(stop - start, size)
                for name, part in chunk.parts.items():
                    sketch += projections.sketch(name, part)
                sketches.append(sketch)
        check_reached(reached)
        self._norms, self._values = torch.cat(norms), torch.cat(sketches)
        self._lengths = torch.linalg.vector_norm(self._values, dim=1, dtype=torch.float64).cpu()

    @property
    def dimension(self) -> int:
        """The size of the sketch."""
        return self._values.shape[1]

    def rows(self) -> Array:
        """Return the unit sketches themselves, (n, size), one row a sample: all that later products need."""
        return (self._values.double().cpu() * self._scale().unsqueeze(1)).to(self._values.dtype).numpy()

    def _like(self) -> Tensor:
        return self._values

    def _scale(self) -> Tensor:
        return torch.where(self._lengths > 0, 1.0 / self._lengths, 0.0)

    def _gram(self) -> Tensor:
        return (self._values @ self._values.T).double()

    def _combine(self, weights: Tensor) -> Tensor:
        return weights @ self._values

    def _project(self, vector: Tensor) -> Tensor:
        return self._values @ vector
