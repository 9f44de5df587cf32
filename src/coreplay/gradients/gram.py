"""The gram matrix from factors, by the cheaper of two forms for each parameter.

*Pairs*: ⟨g_i, g_j⟩ = Σ_{t∈i, s∈j} (left_t · left_s)(right_t · right_s), about R²(d_left + d_right) for R
rows. *Built*: the gradients themselves, a slab of the parameter at a time, and their product, about
n² d_left d_right. Parameters whose rows share their right side count as one, stacked: its products are computed once.
Blocks of samples are lists of chunks; a symmetric product does the upper triangle only.
"""

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from coreplay.gradients.factors import Chunk, Lookup, Outer, Parts, padded, right_side, stack

# Measured in multiply-adds of a matrix product: what it costs besides, per number of the pair matrix and
# per number of a built gradient (both are bound by memory, not by arithmetic).
_PER_PAIR = 60
_PER_BUILT = 60
_SMALL = 1 << 18  # numbers of a gram whose parameters are seen to side by side


@dataclass(frozen=True)
class Side:
    """One parameter's factors over a block of samples: chunks with the place of their first sample."""

    n: int
    chunks: list[tuple[int, Parts]]


def add_gram(gram: Tensor, rows: list[Chunk], columns: list[Chunk] | None, workspace: int) -> None:
    """Add the inner products of two blocks of samples to `gram`, (samples of `rows`, samples of `columns`), in float64.

    If `columns` is None, the block is multiplied with itself. Temporary results take at most `workspace` bytes.
    """

    def product(names: list[str], room: int) -> Tensor:
        found = torch.zeros_like(gram)
        left = _side(rows, names)
        right = None if columns is None else _side(columns, names)
        if left.chunks and (right is None or right.chunks):
            _add_parameter(found, left, right, room)
        return found

    for found in _side_by_side(product, _groups(rows + (columns or [])), gram, workspace):
        gram += found
    if columns is None:
        gram.copy_(gram.triu() + gram.triu(1).T)


def _side_by_side(
    product: Callable[[list[str], int], Tensor], groups: list[list[str]], gram: Tensor, workspace: int
) -> Iterator[Tensor]:
    """Return the products of all parameters, in their order, computed on as many threads as torch has.

    Each on one thread of its own: the products of a small pool are too short to be shared among threads.
    """
    threads = torch.get_num_threads()
    if threads == 1 or gram.device.type != "cpu" or gram.numel() > _SMALL:
        yield from (product(names, workspace) for names in groups)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(lambda names: product(names, workspace // threads), groups)
    finally:
        torch.set_num_threads(threads)  # for threads that are yet to come, too


def _groups(chunks: list[Chunk]) -> list[list[str]]:
    """Return the parameters, those together whose rows have the same right side: query, key and value."""
    groups: dict[tuple[Hashable, ...], list[str]] = {}
    for name in sorted({name for chunk in chunks for name in chunk.parts}):
        key = tuple(right_side(chunk.parts[name]) if name in chunk.parts else None for chunk in chunks)
        groups.setdefault(key if None not in key else (name,), []).append(name)
    return list(groups.values())


def _side(chunks: list[Chunk], names: list[str]) -> Side:
    first = chunks[0].start
    found = [
        (chunk.start - first, stack([chunk.parts[name] for name in names]))
        for chunk in chunks
        if names[0] in chunk.parts
    ]
    return Side(chunks[-1].stop - first, found)


def _add_parameter(gram: Tensor, left: Side, right: Side | None, workspace: int) -> None:
    others = left.chunks if right is None else right.chunks
    if prefer_pairs(left, right):
        for i, (place, part) in enumerate(left.chunks):
            for other_place, other in others[i:] if right is None else others:
                target = gram[place : place + part.n, other_place : other_place + other.n]
                pair_gram(target, part, other, symmetric=other is part)
        return
    built_gram(gram, left.chunks, None if right is None else right.chunks, workspace)


def prefer_pairs(left: Side, right: Side | None) -> bool:
    """Whether the pair form costs less than building the gradients."""
    right = left if right is None else right
    everything = [part for _, part in left.chunks + right.chunks]
    if any(part.dense is not None for part in everything):
        return False
    pairs = 0
    for _, part in left.chunks:
        for _, other in right.chunks:
            pairs += _pair_cost(part, other)
    size = built_size(everything)
    return pairs <= size * (left.n * right.n + _PER_BUILT * (left.n + right.n))


def _pair_cost(one: Parts, two: Parts) -> int:
    cost = 0
    for factor in (one.outer, one.lookup):
        for other in (two.outer, two.lookup):
            if factor is not None and other is not None:
                both = factor is one.outer and other is two.outer
                width = one.shape[1] + (one.shape[0] if both else 0) + _PER_PAIR
                cost += len(factor.owner) * len(other.owner) * width
    return cost


_ROWS = 256  # rows multiplied at a time: the pair matrices stay in the cache
RowFactor: TypeAlias = Outer | Lookup


def pair_gram(target: Tensor, one: Parts, two: Parts, symmetric: bool) -> None:
    """Add ⟨g_i, g_j⟩ for the samples of two chunks to `target`; if symmetric, for its upper triangle."""
    for factor in (one.outer, one.lookup):
        for other in (two.outer, two.lookup):
            if factor is not None and other is not None:
                _add_pairs(target, factor, other, symmetric)


def _add_pairs(target: Tensor, one: RowFactor, two: RowFactor, symmetric: bool) -> None:
    counts = torch.bincount(one.owner, minlength=target.shape[0])
    other_counts = torch.bincount(two.owner, minlength=target.shape[1])
    ends, other_ends = counts.cumsum(0).tolist(), other_counts.cumsum(0).tolist()
    first, together = 0, _ROWS // 2 if symmetric else _ROWS  # smaller steps follow the diagonal more closely
    while first < len(ends):
        begin = ends[first - 1] if first else 0
        last = first + 1
        while last < len(ends) and ends[last] - begin <= together:
            last += 1
        column = first if symmetric else 0
        start = other_ends[column - 1] if column else 0
        if ends[last - 1] > begin and other_ends[-1] > start:
            products = _left_products(one, slice(begin, ends[last - 1]), two, slice(start, None))
            products *= one.right[begin : ends[last - 1]] @ two.right[start:].T
            target[first:last, column:] += _by_sample(products, counts[first:last], other_counts[column:])
        first = last


def _left_products(one: RowFactor, rows: slice, two: RowFactor, columns: slice) -> Tensor:
    if isinstance(one, Outer):
        if isinstance(two, Outer):
            return one.left[rows] @ two.left[columns].T
        return one.left[rows][:, two.index[columns]]
    if isinstance(two, Outer):
        return two.left[columns][:, one.index[rows]].T.contiguous()
    return (one.index[rows].unsqueeze(1) == two.index[columns]).to(one.right.dtype)


def _by_sample(products: Tensor, counts: Tensor, other_counts: Tensor) -> Tensor:
    """Sum a matrix of row pairs into a matrix of sample pairs."""
    height, width = int(counts[0]), int(other_counts[0])
    if bool((counts == height).all()) and bool((other_counts == width).all()):
        return products.view(len(counts), height, len(other_counts), width).sum((1, 3), dtype=products.dtype)
    return _membership(counts, products) @ products @ _membership(other_counts, products).T


def _membership(counts: Tensor, like: Tensor) -> Tensor:
    """Return the (samples, rows) matrix of zeros and ones that sums the rows of each sample."""
    samples = torch.arange(len(counts), device=like.device)
    return (samples.unsqueeze(1) == samples.repeat_interleave(counts)).to(like.dtype)


_SLAB = 8 * 2**20  # bytes built at a time: still in the cache when they are multiplied
_BLOCK = 128  # samples per side: the part below the diagonal of a symmetric product is not computed


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
