"""The built form: one parameter's gradients, a slab of its rows at a time, multiplied with each other."""

import torch
from torch import Tensor

from coreplay.gradients.factors import Parts, padded

_SLAB = 8 * 2**20  # bytes built at a time: still in the cache when they are multiplied
_BLOCK = 128  # samples a side: the part below the diagonal of a symmetric product is not computed


def built_size(parts: list[Parts]) -> int:
    """Return how many numbers of a parameter's gradients may differ from zero."""
    used = _used(parts)
    height, width = parts[0].shape
    return (height if used is None else len(used)) * width


def built_gram(
    gram: Tensor, rows: list[tuple[int, Parts]], columns: list[tuple[int, Parts]] | None, workspace: int
) -> None:
    """Add the inner products of two blocks of samples to `gram`, using about `workspace` bytes at most."""
    everything = [part for _, part in rows + (columns or [])]
    used = _used(everything)
    height = everything[0].shape[0] if used is None else len(used)
    width, like = everything[0].shape[1], everything[0].like
    sizes = [gram.shape[0]] if columns is None else list(gram.shape)
    step = max(1, min(height, min(workspace, _SLAB) // (sum(sizes) * width * like.element_size())))
    buffers = [like.new_empty(size * step * width) for size in sizes]
    for start in range(0, height, step):
        stop = min(start + step, height)
        left = _build(rows, gram.shape[0], (start, stop), used, buffers[0])
        if columns is not None:
            gram += left @ _build(columns, gram.shape[1], (start, stop), used, buffers[1]).T
            continue
        for first in range(0, len(left), _BLOCK):
            gram[first : first + _BLOCK, first:] += left[first : first + _BLOCK] @ left[first:].T


def _build(
    chunks: list[tuple[int, Parts]], n: int, slab_rows: tuple[int, int], used: Tensor | None, buffer: Tensor
) -> Tensor:
    """Return some rows of the gradients of a block's samples: (n, rows x width)."""
    (start, stop), width = slab_rows, chunks[0][1].shape[1]
    slab = buffer[: n * (stop - start) * width].view(n, stop - start, width)
    covered = sum(part.n for _, part in chunks)
    if covered < n:  # some chunk does not use this parameter
        slab.zero_()
    for place, part in chunks:
        target = slab[place : place + part.n]
        if part.dense is not None:
            target.copy_(part.dense.values[:, start * width : stop * width].view(target.shape))
            continue
        if part.outer is None:
            target.zero_()
        else:
            left = padded(part.outer.left[:, start:stop], part.outer.owner, part.n)
            torch.bmm(left.mT, padded(part.outer.right, part.outer.owner, part.n), out=target)
        if part.lookup is not None:
            index = part.lookup.index if used is None else torch.searchsorted(used, part.lookup.index)
            inside = ((index >= start) & (index < stop)).nonzero().squeeze(1)
            rows = part.lookup.owner[inside] * (stop - start) + index[inside] - start
            target.view(-1, width).index_add_(0, rows, part.lookup.right[inside])
    return slab.flatten(1)


def _used(parts: list[Parts]) -> Tensor | None:
    """Return the rows of the parameter that lookups touch, if nothing but lookups does."""
    lookups = [part.lookup for part in parts]
    if any(part.outer is not None or part.dense is not None for part in parts):
        return None
    indices = torch.cat([lookup.index for lookup in lookups if lookup is not None])
    found: Tensor = torch.unique(indices)
    return found
