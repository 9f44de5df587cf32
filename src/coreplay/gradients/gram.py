"""The gram matrix from factors, by the cheaper of two forms for each parameter.

*Pairs*: ⟨g_i, g_j⟩ = Σ_{t∈i, s∈j} (left_t · left_s)(right_t · right_s), about R²(d_left + d_right) for R
rows. *Built*: the gradients themselves, a slab of the parameter at a time, and their product, about
n² d_left d_right. Parameters whose rows share their right side count as one, stacked: its products are computed once.
Blocks of samples are lists of chunks; a symmetric product does the upper triangle only.
"""

from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from coreplay.gradients.factors import Chunk, Outer, Parts, RowFactor, padded, right_side, stack

# Measured in multiply-adds of a matrix product: what it costs besides, per number of the pair matrix and
# per number of a built gradient (both are bound by memory, not by arithmetic).
_PER_PAIR = 60
_PER_BUILT = 60
_SMALL = 1 << 18  # numbers of a gram whose parameters are seen to side by side

Block: TypeAlias = list[tuple[int, Parts]]  # one parameter's factors by chunk, with the place of the first sample


def add_gram(gram: Tensor, rows: list[Chunk], columns: list[Chunk], workspace: int) -> None:
    """Add the inner products of two blocks of samples to `gram`, (samples of `rows`, samples of `columns`), in float64.

    If `columns` is the same list as `rows`, only one triangle is computed. Temporary results take at most `workspace`
    bytes. The products of a small pool are too short to be shared among threads, so each has a thread of its own.
    """
    groups = _groups(rows if columns is rows else rows + columns)
    threads = torch.get_num_threads()
    if threads == 1 or gram.device.type != "cpu" or gram.numel() > _SMALL:
        for names in groups:
            gram += _product(gram, rows, columns, names, workspace)
    else:
        product = partial(_product, gram, rows, columns, workspace=workspace // threads)
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                for found in pool.map(product, groups):
                    gram += found
        finally:
            torch.set_num_threads(threads)  # for threads that are yet to come, too
    if columns is rows:
        gram.copy_(gram.triu() + gram.triu(1).T)


def _groups(chunks: list[Chunk]) -> list[list[str]]:
    """Return the parameters, those together whose rows have the same right side: query, key and value."""
    groups: dict[tuple[Hashable, ...], list[str]] = {}
    for name in sorted({name for chunk in chunks for name in chunk.parts}):
        key = tuple(right_side(chunk.parts[name]) if name in chunk.parts else None for chunk in chunks)
        groups.setdefault(key if None not in key else (name,), []).append(name)
    return list(groups.values())


def _product(like: Tensor, rows: list[Chunk], columns: list[Chunk], names: list[str], workspace: int) -> Tensor:
    """Return what some parameters with one right side add to the gram, by the cheaper form."""
    found = torch.zeros_like(like)
    left = _block(rows, names)
    right = left if columns is rows else _block(columns, names)
    if not left or not right:
        return found
    if not prefer_pairs(left, right, *found.shape):
        built_gram(found, left, right, workspace)
        return found
    for i, (place, part) in enumerate(left):
        for other_place, other in right[i:] if right is left else right:
            target = found[place : place + part.n, other_place : other_place + other.n]
            pair_gram(target, part, other, symmetric=other is part)
    return found


def _block(chunks: list[Chunk], names: list[str]) -> Block:
    return [
        (chunk.start - chunks[0].start, stack([chunk.parts[name] for name in names]))
        for chunk in chunks
        if names[0] in chunk.parts
    ]


def prefer_pairs(left: Block, right: Block, n: int, m: int) -> bool:
    """Whether the pair form costs less than building the gradients of n and m samples."""
    everything = [part for _, part in left + right]
    if any(part.dense is not None for part in everything):
        return False
    pairs = sum(_pair_cost(part, other) for _, part in left for _, other in right)
    used = _used(everything)
    height, width = everything[0].shape
    built = (height if used is None else len(used)) * width  # numbers of a gradient that may differ from zero
    return pairs <= built * (n * m + _PER_BUILT * (n + m))


def _pair_cost(one: Parts, two: Parts) -> int:
    cost = 0
    for factor in one.row_factors:
        for other in two.row_factors:
            both = isinstance(factor, Outer) and isinstance(other, Outer)
            width = one.shape[1] + (one.shape[0] if both else 0) + _PER_PAIR
            cost += len(factor.owner) * len(other.owner) * width
    return cost


_ROWS = 256  # rows multiplied at a time: the pair matrices stay in the cache


def pair_gram(target: Tensor, one: Parts, two: Parts, symmetric: bool) -> None:
    """Add ⟨g_i, g_j⟩ for the samples of two chunks to `target`; if symmetric, for its upper triangle."""
    for factor in one.row_factors:
        for other in two.row_factors:
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


def built_gram(gram: Tensor, rows: Block, columns: Block, workspace: int) -> None:
    """Add the inner products of two blocks of samples to `gram`, using about `workspace` bytes at most."""
    symmetric = columns is rows
    everything = [part for _, part in (rows if symmetric else rows + columns)]
    used = _used(everything)
    height = everything[0].shape[0] if used is None else len(used)
    width, like = everything[0].shape[1], everything[0].like
    sizes = [gram.shape[0]] if symmetric else list(gram.shape)
    step = max(1, min(height, min(workspace, _SLAB) // (sum(sizes) * width * like.element_size())))
    buffers = [like.new_empty(size * step * width) for size in sizes]
    for start in range(0, height, step):
        stop = min(start + step, height)
        left = _build(rows, gram.shape[0], (start, stop), used, buffers[0])
        if not symmetric:
            gram += left @ _build(columns, gram.shape[1], (start, stop), used, buffers[1]).T
            continue
        for first in range(0, len(left), _BLOCK):
            gram[first : first + _BLOCK, first:] += left[first : first + _BLOCK] @ left[first:].T


def _build(chunks: Block, n: int, slab_rows: tuple[int, int], used: Tensor | None, buffer: Tensor) -> Tensor:
    """Return some rows of the gradients of a block's samples: (n, rows x width)."""
    (start, stop), width = slab_rows, chunks[0][1].shape[1]
    slab = buffer[: n * (stop - start) * width].view(n, stop - start, width)
    if sum(part.n for _, part in chunks) < n:  # some chunk does not use this parameter
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
    if any(part.outer is not None or part.dense is not None for part in parts):
        return None
    found: Tensor = torch.unique(torch.cat([part.lookup.index for part in parts if part.lookup is not None]))
    return found
