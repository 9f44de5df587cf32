"""Passes over a pool in chunks: how many samples at a time, and whether they are independent at all."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from coreplay.errors import InputError
from coreplay.gradients.capture import capture
from coreplay.gradients.factors import Chunk
from coreplay.gradients.ownership import MOST_SAMPLES
from coreplay.gradients.problem import Problem, arrays_in, frozen_state
from coreplay.gradients.recorder import FunctionalCall, forward

_PROBE = 2  # samples that are probed; two, so that a mixture of samples shows
_SHARE = 4  # the chunk at work may take this fraction of the memory limit
_WORKING_SET = 400 * 2**20  # beyond this, larger chunks are slower: every allocation means fresh pages


class Passes:
    """Computes the factors of a pool chunk by chunk, as often as they are needed.

    Probing two samples shows the memory that a sample takes, hence how many go together. Their losses must not change
    in the company of others, else the samples are not independent and have no gradients of their own. What probing
    showed is kept in the problem's `probe_cache`, by the shapes of a sample.
    """

    def __init__(self, problem: Problem, memory_limit: int) -> None:
        self.problem = problem
        self.expand = True
        self._versions = self._current_versions()
        with frozen_state(problem.model):
            self.ranges = self._plan(memory_limit)

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Open the model for any number of passes; refuse if it has been trained since."""
        if self._current_versions() != self._versions:
            raise InputError(
                "the model has changed since its gradient matrix was made, and the pool is too large for "
                "memory_limit to have kept everything: make the matrix again, or raise memory_limit"
            )
        with frozen_state(self.problem.model):
            yield

    def chunk(self, start: int, stop: int) -> Chunk:
        """Return the factors of the samples `start` up to `stop`, within `visit`."""
        return capture(self.problem, start, stop, self.expand)

    def chunks(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Chunk]:
        """Yield the factors of several ranges. Delete each chunk before you ask for the next: two may not fit."""
        with self.visit():
            for start, stop in ranges:
                yield self.chunk(start, stop)

    def _current_versions(self) -> list[tuple[int, int]]:
        return [(parameter.data_ptr(), parameter._version) for parameter in self.problem.model.parameters()]

    def _plan(self, memory_limit: int) -> list[tuple[int, int]]:
        n, cache = self.problem.n, self.problem.probe_cache
        shapes = tuple((path, leaf.shape[1:], leaf.dtype) for path, leaf in arrays_in(self.problem.batch))
        if shapes in cache:
            taken, self.expand = cache[shapes]
        else:
            taken = self._bytes_each()
            if n > _PROBE:  # else there were no others among which losses had to come out the same
                cache[shapes] = (taken, self.expand)
        each = 2 * taken
        if each > memory_limit:
            raise InputError(
                f"memory_limit must be at least {each} bytes, what one sample takes: got {memory_limit}; "
                "raise it, or select fewer parameters"
            )
        together = max(1, min(MOST_SAMPLES, min(memory_limit // _SHARE, _WORKING_SET) // max(1, each)))
        together = -(-n // -(-n // together))  # chunks of equal size
        return [(start, min(start + together, n)) for start in range(0, n, together)]

    def _bytes_each(self) -> int:
        """Return the memory that a sample takes, having seen whether samples are independent."""
        probe = min(_PROBE, self.problem.n)
        company = self._plain_losses(probe + 1 if probe < self.problem.n else 1)[:probe]
        try:
            found, losses = self._measure(probe)
            self.expand = _close(losses[: len(company)], company)
        except InputError:
            raise
        except Exception:  # what a layer says to a shape that it did not expect; if not that, it fails again
            self.expand = False
        if self.expand:
            return found
        if not _close(self._plain_losses(probe)[: len(company)], company):
            raise InputError(
                "the loss of a sample depends on the other samples of the batch, so it has no own gradient: "
                "look for batch statistics, contrastive losses or random numbers in the model or in "
                "per_sample_loss"
            )
        return self._measure(probe)[0]

    def _plain_losses(self, count: int) -> Tensor:
        with torch.no_grad():
            return self.problem.losses(0, count)

    def _measure(self, probe: int) -> tuple[int, Tensor]:
        """Return the memory that a sample will take, from a forward pass alone, and the losses."""
        saved: dict[int, int] = {}  # the size of everything that autograd saves, by storage

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()  # with its place in the graph, a saved output and the graph would hold each other

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            seen = forward(self.problem, 0, probe, self.expand)
        held = sum(size for place, size in saved.items() if place not in self.problem.storages)
        others = {name for call in seen.calls if isinstance(call, FunctionalCall) for name in call.parameters.values()}
        built = sum(self.problem.selected.parameters[name].nbytes for name in seen.unclaimed | others)
        return (held + 2 * seen.nbytes) // probe + built, seen.losses.detach()  # both backward passes


def _close(found: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-3 if expected.dtype == torch.float32 else 1e-8
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
