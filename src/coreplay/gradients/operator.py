"""The gradient matrix as an operator, and its three forms: dense, factored and sketched.

Selection and coordination ask for products only, so the factored form keeps factors and never builds a gradient. What
does not fit in the memory limit is computed again when it is needed: nothing is written to disk, where a client's data
would leave a trace. A sketch keeps `size` numbers per sample: the sketches of all parameters are added up, so that
⟨s_i, s_j⟩ estimates ⟨g_i, g_j⟩ without bias, and the room goes to the parameters with the large gradients.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coreplay.errors import InputError
from coreplay.gradients.chunking import Passes
from coreplay.gradients.factors import Chunk, add_combination, projection
from coreplay.gradients.gram import add_gram
from coreplay.gradients.per_sample_fallback import per_sample_autograd
from coreplay.gradients.problem import Problem, check_gradients_finite, check_reached, frozen_state
from coreplay.gradients.sketch import Projections

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


class _ExplicitGradients(GradientMatrix):
    """Keeps one row of numbers per sample."""

    _values: Tensor

    @property
    def dimension(self) -> int:
        """The number of values kept per sample."""
        return self._values.shape[1]

    def _like(self) -> Tensor:
        return self._values

    def _gram(self) -> Tensor:
        return (self._values @ self._values.T).double()

    def _combine(self, weights: Tensor) -> Tensor:
        return weights @ self._values

    def _project(self, vector: Tensor) -> Tensor:
        return self._values @ vector


class DenseGradients(_ExplicitGradients):
    """Keeps the gradients themselves, computed by plain autograd, one sample at a time: the reference."""

    def __init__(self, problem: Problem, *, memory_limit: int) -> None:
        needed = problem.n * problem.selected.dimension * problem.selected.like.element_size()
        if needed > memory_limit:
            raise InputError(
                f"memory_limit must be at least {needed} bytes for {problem.n} explicit gradients: "
                f"got {memory_limit}; use backend='factored', or select fewer parameters"
            )
        self._values = problem.selected.like.new_zeros(problem.n, problem.selected.dimension)
        reached = False
        with frozen_state(problem.model):
            for i in range(problem.n):
                for name, values in per_sample_autograd(problem, i, i + 1, problem.selected.parameters).items():
                    self._values[i, problem.selected.slices[name]] = values[0]
                    reached = True
        check_reached(reached)
        self._norms = torch.linalg.vector_norm(self._values, dim=1, dtype=torch.float64).cpu()
        check_gradients_finite(self._norms, 0)


_KEPT = 2  # the chunks kept may take this fraction of the memory limit
_WORKSPACE = 8


class FactoredGradients(GradientMatrix):
    """Keeps the factors of as many chunks as the memory limit allows: all of them, if it can."""

    def __init__(self, problem: Problem, *, memory_limit: int) -> None:
        self._problem = problem
        self._memory_limit = memory_limit
        self._passes = Passes(problem, memory_limit)
        self._kept: dict[int, Chunk] = {}  # by first sample; always neighbours
        room = memory_limit // _KEPT

        def keep(chunk: Chunk) -> None:
            nonlocal room
            room -= chunk.nbytes(problem.storages)
            if room >= 0:
                self._kept[chunk.start] = chunk

        self._norms = self._passes.first_pass(keep)

    @property
    def dimension(self) -> int:
        """Number of selected parameters."""
        return self._problem.selected.dimension

    def _like(self) -> Tensor:
        return self._problem.selected.like

    def _gram(self) -> Tensor:
        n, workspace = len(self), self._memory_limit // _WORKSPACE
        gram = torch.zeros(n, n, dtype=torch.float64, device=self._like().device)
        left = list(self._passes.ranges)
        if len(self._kept) == len(left):
            add_gram(gram, list(self._kept.values()), None, workspace)
            return gram
        with self._passes.visit():
            while left:
                block = self._take_block(left)
                left = [(start, stop) for start, stop in left if start not in self._kept]
                rows = slice(block[0].start, block[-1].stop)
                add_gram(gram[rows, rows], block, None, workspace)
                for start, stop in left:
                    add_gram(gram[rows, start:stop], block, [self._passes.chunk(start, stop)], workspace)
                    gram[start:stop, rows] = gram[rows, start:stop].T
                del block  # before the next one is made: two would not fit
        return gram

    def _take_block(self, left: list[tuple[int, int]]) -> list[Chunk]:
        """Return the kept chunks if they are still to do, else keep the next ones instead."""
        if left[0][0] not in self._kept:
            self._kept, room = {}, self._memory_limit // _KEPT
            for start, stop in left:
                chunk = self._passes.chunk(start, stop)
                room -= chunk.nbytes(self._problem.storages)
                if room < 0 and self._kept:
                    break
                self._kept[start] = chunk
        return list(self._kept.values())

    def _combine(self, weights: Tensor) -> Tensor:
        selected = self._problem.selected
        result = selected.like.new_zeros(selected.dimension)
        for chunk in self._kept.values():
            part_weights = weights[chunk.start : chunk.stop]
            for name, part in chunk.parts.items():
                add_combination(result[selected.slices[name]], part, part_weights)
        for start, stop in self._ranges_not_kept():
            self._add_by_autograd(result, weights, start, stop)
        return result

    def _ranges_not_kept(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of samples whose factors must be computed again, with the model open for it."""
        missing = [(start, stop) for start, stop in self._passes.ranges if start not in self._kept]
        if missing:
            with self._passes.visit():
                yield from missing

    def _add_by_autograd(self, result: Tensor, weights: Tensor, start: int, stop: int) -> None:
        """Add the weighted gradients of samples that are not kept: one plain backward pass, no factors."""
        selected = self._problem.selected
        losses = self._problem.losses(start, stop)
        if not losses.requires_grad or not bool(weights[start:stop].any()):
            return
        total = torch.dot(losses, weights[start:stop].to(losses.dtype))
        found = torch.autograd.grad(total, list(selected.parameters.values()), allow_unused=True)
        for name, gradient in zip(selected.parameters, found, strict=True):
            if gradient is not None:
                result[selected.slices[name]] += gradient.to_dense().flatten()

    def _project(self, vector: Tensor) -> Tensor:
        selected = self._problem.selected
        result = torch.zeros(len(self), dtype=torch.float64, device=vector.device)

        def add(chunk: Chunk) -> None:
            for name, part in chunk.parts.items():
                result[chunk.start : chunk.stop] += projection(part, vector[selected.slices[name]])

        for chunk in self._kept.values():
            add(chunk)
        for start, stop in self._ranges_not_kept():
            add(self._passes.chunk(start, stop))
        return result


class SketchedGradients(_ExplicitGradients):
    """Keeps (n, size) numbers; columns are unit vectors in the sketch, `norms()` are the true gradients'."""

    def __init__(self, problem: Problem, *, memory_limit: int, size: int, seed: int) -> None:
        if size < 1:
            raise InputError(f"size must be at least 1, the numbers kept per sample: got {size}")
        projections = Projections(size, seed, problem.selected.like)
        sketches: list[Tensor] = []

        def sketch(chunk: Chunk) -> None:
            sketches.append(problem.selected.like.new_zeros(chunk.stop - chunk.start, size))
            for name, part in chunk.parts.items():
                sketches[-1] += projections.sketch(name, part)

        self._norms = Passes(problem, memory_limit).first_pass(sketch)
        self._values = torch.cat(sketches)
        self._lengths = torch.linalg.vector_norm(self._values, dim=1, dtype=torch.float64).cpu()

    def rows(self) -> Array:
        """Return the unit sketches themselves, (n, size), one row per sample: all that later products need."""
        return (self._values.double().cpu() * self._scale().unsqueeze(1)).to(self._values.dtype).numpy()

    def _scale(self) -> Tensor:
        return torch.where(self._lengths > 0, 1.0 / self._lengths, 0.0)
