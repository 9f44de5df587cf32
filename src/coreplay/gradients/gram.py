"""The gram matrix from factors, by the cheaper of two forms for each parameter.

*Pairs*: ⟨g_i, g_j⟩ = Σ_{t∈i, s∈j} (left_t · left_s)(right_t · right_s), about R²(d_left + d_right) for R
rows. *Built*: the gradients themselves, a slab of the parameter at a time, and their product, about
n² d_left d_right. Parameters whose rows share their right side count as one, stacked: its products are computed once.
Blocks of samples are lists of chunks; a symmetric product does the upper triangle only.
"""

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from coreplay.gradients.built import built_gram, built_size
from coreplay.gradients.factors import Chunk, Parts, right_side, stack
from coreplay.gradients.pairs import pair_gram

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
    """Add the inner products of two blocks of samples (or of one block with itself) to `gram`, in float64.

    Parameters
    ----------
    gram
        (samples of `rows`, samples of `columns`), float64.
    rows
        The first block.
    columns
        The second block; None means `rows` again, of which only the upper triangle is computed.
    workspace
        Bytes that temporary results may take.
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
