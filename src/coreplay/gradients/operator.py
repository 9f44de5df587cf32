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
from coreplay.gradients.capture import per_sample_autograd
from coreplay.gradients.chunking import Passes
from coreplay.gradients.factors import Chunk, add_combination, projection, squared_norms
from coreplay.gradients.gram import add_gram
from coreplay.gradients.problem import Problem, check_gradients, frozen_state
from coreplay.gradients.sketch import Projections

Array = npt.NDArray[np.floating]


class GradientMatrix(ABC):
    """A matrix G whose columns are the unit loss gradients of a pool, known by its products.

    A sample whose gradient is zero has a zero column. All results are numpy arrays.

    Attributes
    ----------
    dimension : int
        Length of a column, and so of the result of `combine` and the argument of `project`.
    """

    dimension: int
    _norms: Tensor  # of the raw gradients, float64, on the CPU
    _like: Tensor  # has the dtype and the device that the products are computed in

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
        result.diagonal().copy_(self._norms > 0)
        return result.numpy()

    def combine(self, x: npt.ArrayLike | Tensor) -> Array:
        """Return Gx, the sum of the unit gradients with weights `x`, one flat vector."""
        weights = _vector(x, "x", len(self), "samples in the pool")
        return self._combine((weights * self._scale()).to(self._like)).cpu().numpy()

    def project(self, v: npt.ArrayLike | Tensor) -> Array:
        """Return Gᵀv, the inner product of every sample's unit gradient with `v`."""
        vector = _vector(v, "v", self.dimension, "numbers in a column")
        return (self._project(vector.to(self._like)).cpu().double() * self._scale()).numpy()

    def _scale(self) -> Tensor:
        """Return what a column is scaled by to unit length, 0 for a zero column."""
        return _inverse(self._norms)


def _inverse(lengths: Tensor) -> Tensor:
    return torch.where(lengths > 0, 1.0 / lengths, 0.0)


def _vector(value: npt.ArrayLike | Tensor, name: str, length: int, meaning: str) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
    else:
        array = np.ascontiguousarray(value)
        tensor = torch.from_numpy(
            array if array.flags.writeable else array.copy()
        )  # torch can't share what is read-only
    if tensor.shape != (length,):
        raise InputError(f"{name} must have shape ({length},), the {meaning}: got {tuple(tensor.shape)}")
    if not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
        raise InputError(f"{name} must be finite: got {int((~torch.isfinite(tensor)).sum())} values that are not")
    return tensor


class _ExplicitGradients(GradientMatrix):
    """Keeps one row of numbers per sample."""

    def __init__(self, rows: Tensor, norms: Tensor) -> None:
        self._rows = self._like = rows
        self._norms = norms
        self.dimension = rows.shape[1]

    def _gram(self) -> Tensor:
        return (self._rows @ self._rows.T).double()

    def _combine(self, weights: Tensor) -> Tensor:
        return weights @ self._rows

    def _project(self, vector: Tensor) -> Tensor:
        return self._rows @ vector


class DenseGradients(_ExplicitGradients):
    """Keeps the gradients themselves, computed by plain autograd, one sample at a time: the reference."""

    def __init__(self, problem: Problem, memory_limit: int) -> None:
        selected = problem.selected
        needed = problem.n * selected.dimension * selected.like.element_size()
        if needed > memory_limit:
            raise InputError(
                f"memory_limit must be at least {needed} bytes for {problem.n} explicit gradients: "
                f"got {memory_limit}; use backend='factored', or select fewer parameters"
            )
        rows, reached = selected.like.new_zeros(problem.n, selected.dimension), False
        with frozen_state(problem.model):
            for i in range(problem.n):
                for name, values in per_sample_autograd(problem, i, i + 1, selected.parameters).items():
                    rows[i, selected.slices[name]] = values[0]
                    reached = True
        super().__init__(rows, torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu())
        check_gradients(self._norms, reached)


class SketchedGradients(_ExplicitGradients):
    """Keeps (n, size) numbers; columns are unit vectors in the sketch, `norms()` are the true gradients'."""

    def __init__(self, problem: Problem, memory_limit: int, size: int, seed: int) -> None:
        if size < 1:
            raise InputError(f"size must be at least 1, the numbers kept per sample: got {size}")
        projections = Projections(size, seed, problem.selected.like)
        passes, norms, reached = Passes(problem, memory_limit), [], False
        rows = problem.selected.like.new_zeros(problem.n, size)
        for chunk in passes.chunks(passes.ranges):
            norms.append(squared_norms(chunk).sqrt())
            reached |= chunk.reached
            for name, part in chunk.parts.items():
                rows[chunk.start : chunk.stop] += projections.sketch(name, part)
            del chunk
        super().__init__(rows, torch.cat(norms))
        check_gradients(self._norms, reached)
        self._lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu()

    def rows(self) -> Array:
        """Return the unit sketches themselves, (n, size), one row per sample: all that later products need."""
        return (self._rows.double().cpu() * self._scale().unsqueeze(1)).to(self._rows.dtype).numpy()

    def _scale(self) -> Tensor:
        return _inverse(self._lengths)


_KEPT = 2  # the chunks kept may take this fraction of the memory limit
_WORKSPACE = 8


class FactoredGradients(GradientMatrix):
    """Keeps the factors of as many chunks as the memory limit allows: all of them, if it can."""

    def __init__(self, problem: Problem, memory_limit: int) -> None:
        self.dimension, self._like = problem.selected.dimension, problem.selected.like
        self._problem, self._memory_limit = problem, memory_limit
        self._passes = Passes(problem, memory_limit)
        self._kept: dict[int, Chunk] = {}  # by first sample; always neighbours
        norms, reached, room = [], False, memory_limit // _KEPT
        for chunk in self._passes.chunks(self._passes.ranges):
            norms.append(squared_norms(chunk).sqrt())
            reached |= chunk.reached
            room -= chunk.nbytes(problem.storages)
            if room >= 0:
                self._kept[chunk.start] = chunk
            del chunk
        self._norms = torch.cat(norms)
        check_gradients(self._norms, reached)

    def _gram(self) -> Tensor:
        n, workspace = len(self), self._memory_limit // _WORKSPACE
        gram = torch.zeros(n, n, dtype=torch.float64, device=self._like.device)
        left = list(self._passes.ranges)
        if len(self._kept) == len(left):
            kept = list(self._kept.values())
            add_gram(gram, kept, kept, workspace)
            return gram
        with self._passes.visit():
            while left:
                block = self._take_block(left)
                left = [(start, stop) for start, stop in left if start not in self._kept]
                rows = slice(block[0].start, block[-1].stop)
                add_gram(gram[rows, rows], block, block, workspace)
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

    def _missing(self) -> list[tuple[int, int]]:
        """Return the ranges of samples whose factors are not kept."""
        return [(start, stop) for start, stop in self._passes.ranges if start not in self._kept]

    def _combine(self, weights: Tensor) -> Tensor:
        selected = self._problem.selected
        result = self._like.new_zeros(self.dimension)
        for chunk in self._kept.values():
            for name, part in chunk.parts.items():
                add_combination(result[selected.slices[name]], part, weights[chunk.start : chunk.stop])
        if self._missing():  # one plain backward pass each, no factors
            with self._passes.visit():
                for start, stop in self._missing():
                    self._add_by_autograd(result, weights[start:stop], start, stop)
        return result

    def _add_by_autograd(self, result: Tensor, weights: Tensor, start: int, stop: int) -> None:
        selected, losses = self._problem.selected, self._problem.losses(start, stop)
        if not losses.requires_grad or not bool(weights.any()):
            return
        total = torch.dot(losses, weights.to(losses.dtype))
        found = torch.autograd.grad(total, list(selected.parameters.values()), allow_unused=True)
        for name, gradient in zip(selected.parameters, found, strict=True):
            if gradient is not None:
                result[selected.slices[name]] += gradient.to_dense().flatten()

    def _project(self, vector: Tensor) -> Tensor:
        slices = self._problem.selected.slices
        result = torch.zeros(len(self), dtype=torch.float64, device=vector.device)
        for chunk in self._all_chunks():
            for name, part in chunk.parts.items():
                result[chunk.start : chunk.stop] += projection(part, vector[slices[name]])
            del chunk
        return result

    def _all_chunks(self) -> Iterator[Chunk]:
        """Yield the chunks that are kept, then the others, computed again."""
        yield from self._kept.values()
        if missing := self._missing():
            yield from self._passes.chunks(missing)
