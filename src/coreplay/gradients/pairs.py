"""The pair form: inner products of all rows with all rows, left times right, summed by sample."""

from typing import TypeAlias

import torch
from torch import Tensor

from coreplay.gradients.factors import Lookup, Outer, Parts

_ROWS = 256  # rows multiplied at a time: the pair matrices stay in the cache
Rows: TypeAlias = Outer | Lookup


def pair_gram(target: Tensor, one: Parts, two: Parts, symmetric: bool) -> None:
    """Add ⟨g_i, g_j⟩ for the samples of two chunks to `target`; if symmetric, for its upper triangle."""
    for factor in (one.outer, one.lookup):
        for other in (two.outer, two.lookup):
            if factor is not None and other is not None:
                _add_pairs(target, factor, other, symmetric)


def _add_pairs(target: Tensor, one: Rows, two: Rows, symmetric: bool) -> None:
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


def _left_products(one: Rows, rows: slice, two: Rows, columns: slice) -> Tensor:
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
