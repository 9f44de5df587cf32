"""The factored operator: one pass over the pool gives the factors, and these give every product.

What does not fit in the memory limit is computed again when it is needed: nothing is written to disk, where
a client's data would leave a trace. For the gram matrix one block of the pool stays in memory while the rest
passes by.
"""

import torch
from torch import Tensor

from coreplay.gradients.factors import Chunk
from coreplay.gradients.gram import add_gram
from coreplay.gradients.operator import GradientMatrix
from coreplay.gradients.passes import Passes
from coreplay.gradients.problem import Problem, check_reached
from coreplay.gradients.vectors import add_combination, projection

_KEPT = 2  # the chunks kept may take this fraction of the memory limit
_WORKSPACE = 8


class FactoredGradients(GradientMatrix):
    """Keeps the factors of as many chunks as the memory limit allows: all of them, if it can."""

    def __init__(self, problem: Problem, *, memory_limit: int) -> None:
        self._problem = problem
        self._memory_limit = memory_limit
        self._passes = Passes(problem, memory_limit)
        self._kept: dict[int, Chunk] = {}  # by first sample; always neighbours
        norms, room, reached = [], memory_limit // _KEPT, False
        with self._passes.visit():
            for start, stop in self._passes.ranges:
                chunk = self._passes.chunk(start, stop)
                norms.append(self._passes.norms(chunk))
                reached |= chunk.reached
                room -= chunk.nbytes(problem.storages)
                if room >= 0:
                    self._kept[start] = chunk
        check_reached(reached)
        self._norms = torch.cat(norms)

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
        gone = [(start, stop) for start, stop in self._passes.ranges if start not in self._kept]
        if gone:
            with self._passes.visit():
                for start, stop in gone:
                    self._add_by_autograd(result, weights, start, stop)
        return result

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
        gone = [(start, stop) for start, stop in self._passes.ranges if start not in self._kept]
        if gone:
            with self._passes.visit():
                for start, stop in gone:
                    add(self._passes.chunk(start, stop))
        return result
