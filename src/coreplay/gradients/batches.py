"""Batches: any nesting of mappings, lists and tuples whose tensors have the samples in dimension 0."""

from typing import Any

from coreplay.errors import InputError
from coreplay.gradients.trees import arrays_in, rebuild


def batch_size(batch: Any) -> int:
    """Return how many samples the batch holds, after checking that all its tensors agree.

    >>> import torch
    >>> batch_size({"ids": torch.zeros(3, 5), "pair": (torch.zeros(3), None)})
    3
    """
    sizes: dict[str, int] = {}
    for path, leaf in arrays_in(batch, "batch"):
        if leaf.ndim == 0:
            raise InputError(f"{path} must have the samples in its first dimension: got one number; repeat it")
        sizes[path] = int(leaf.shape[0])
    if not sizes:
        raise InputError(f"batch must hold at least one tensor: got {type(batch).__name__}")
    n = next(iter(sizes.values()))
    if any(size != n for size in sizes.values()):
        found = ", ".join(f"{path} has {size}" for path, size in sizes.items())
        raise InputError(f"batch tensors must agree in their first dimension, the samples: {found}")
    if n == 0:
        raise InputError("batch must hold at least one sample: got 0")
    return n


def part(batch: Any, start: int, stop: int) -> Any:
    """Return the samples from `start` up to `stop`, in the same nesting (views, not copies)."""
    return rebuild(batch, lambda leaf: leaf[start:stop])
