"""Random projections for sketches: the same for everyone with the same seed and the same parameter names.

A matrix parameter's gradient g is mapped to the numbers p_kᵀ g q_l / sqrt(size), where p_k and q_l are random
signs: block after block of 8 by 8 such numbers, with new signs for every block. (One large block would be
a poor sketch: of rank-one matrices, its error falls as size^(-1/4) only.) Vectors are hashed: every number is
added, with a random sign, to one of `size` sums. Both keep inner products on average.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from coreplay.gradients.factors import Dense, Lookup, Outer, Parts, dense_values, padded
from coreplay.seeding import generator

_SIDE = 8  # rows and columns of a block: smaller is more accurate and slower
_SLAB = 4096  # rows of signs turned into floating-point numbers at a time


class Side:
    """The projection of one side of a matrix: a vector x to (blocks, side) numbers."""

    def __init__(self, signs: Tensor) -> None:
        self._signs = signs  # (length of x, blocks x side), kept as single bytes

    def of_rows(self, rows: Tensor) -> Tensor:
        """Project vectors, the last dimension of `rows`."""
        total = rows.new_zeros(*rows.shape[:-1], self._signs.shape[1])
        for start in range(0, len(self._signs), _SLAB):
            total += rows[..., start : start + _SLAB] @ self._signs[start : start + _SLAB].to(rows.dtype)
        return total

    def of_units(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Project the unit vectors with a one at `index`."""
        return self._signs[index].to(dtype)


class Projections:
    """The projections of all parameters, made when first needed."""

    def __init__(self, size: int, seed: int, like: Tensor) -> None:
        self._size, self._seed, self._like = size, seed, like
        self._blocks = -(-size // _SIDE**2)
        self._sides: dict[tuple[str, int], Side] = {}
        self._hashes: dict[str, tuple[Tensor, Tensor]] = {}

    def sketch(self, name: str, part: Parts) -> Tensor:
        """Return the sketch (n, size) of one parameter's gradients, whatever form they are kept in."""
        if part.shape[0] == 1:
            return self._hash(name, dense_values(part))
        left, right = self._side(name, 0, part.shape[0]), self._side(name, 1, part.shape[1])
        total = self._like.new_zeros(part.n, self._size)
        for factor in (part.outer, part.lookup, part.dense):
            if isinstance(factor, Dense):
                half = right.of_rows(factor.values.view(part.n, *part.shape))  # (n, height, blocks x side)
                both = left.of_rows(half.mT).view(part.n, self._blocks, _SIDE, self._blocks, _SIDE)
                total += self._flat(both.diagonal(dim1=1, dim2=3).permute(0, 3, 2, 1))
            elif isinstance(factor, Outer | Lookup):
                rows = (
                    left.of_rows(factor.left)
                    if isinstance(factor, Outer)
                    else left.of_units(factor.index, factor.right.dtype)
                )
                pair = (padded(side, factor.owner, part.n) for side in (rows, right.of_rows(factor.right)))
                one, two = (side.view(part.n, side.shape[1], self._blocks, _SIDE).transpose(1, 2) for side in pair)
                total += self._flat(one.mT @ two)
        return total.div_(self._size**0.5)

    def _flat(self, blocks: Tensor) -> Tensor:
        return blocks.flatten(1)[:, : self._size]

    def _side(self, name: str, which: int, length: int) -> Side:
        key = (name, which)
        if key not in self._sides:
            signs = _signs(self._seed, (name, which), length * self._blocks * _SIDE)
            self._sides[key] = Side(signs.to(self._like.device).view(length, -1))
        return self._sides[key]

    def _hash(self, name: str, values: Tensor) -> Tensor:
        if name not in self._hashes:
            rng = generator(self._seed, "sketch", name)
            place = torch.from_numpy(rng.integers(self._size, size=values.shape[1])).to(values.device)
            self._hashes[name] = place, _signs(self._seed, (name, 0), values.shape[1]).to(values)
        place, sign = self._hashes[name]
        return values.new_zeros(len(values), self._size).index_add_(1, place, values * sign)


@lru_cache(maxsize=128)
def _signs(seed: int, keys: tuple[str, int], count: int) -> Tensor:
    """Return random signs as bytes; remembered, since every client of a run needs the same ones."""
    bits = np.frombuffer(generator(seed, "sketch", *keys).bytes(-(-count // 8)), dtype=np.uint8)
    return torch.from_numpy(np.unpackbits(bits, count=count).view(np.int8) * 2 - 1)
