"""Random projections for sketches: the same for everyone with the same seed and the same parameter names.

A matrix parameter's gradient g is hashed entry by entry: g_ij is added, with a random sign for the row and one for the
column, to number (h_i + j) mod size, where h_i is a random place. Inner products are right on average, with an error of
about 1/√size. A row stays in one piece, so that it is added in one go. Because places add up, the sketch of b aᵀ is the
circular convolution of the sketches of b and of a (Pham and Pagh's tensor sketch), so that a large layer with few rows
needs Fourier transforms only; a small one is built a slab at a time and hashed directly, whichever costs less.

Two large entries in one place would show, so they are kept from meeting in force: the columns are cut into 8 blocks,
each with places of its own for the rows (or two words of a vocabulary could meet in all columns), and the entries of a
vector, such as an output bias, go to 16 places each.
"""

from functools import lru_cache
from typing import Any, TypeAlias

import torch
from numba import njit
from torch import Tensor

from coreplay.gradients.factors import Lookup, Outer, Parts, dense_values, padded, sum_by_owner
from coreplay.seeding import generator

_SLAB = 1 << 18  # numbers of built gradients hashed at a time: still in the cache
_TRANSFORMED = 1 << 23  # numbers transformed at a time
_BLOCKS = 8  # of columns, each with places of its own for the rows
_SPREAD = 16  # places of an entry of a vector
_PER_TRANSFORM = 10  # what a number of a Fourier transform costs, in numbers built and hashed

Side: TypeAlias = tuple[Tensor, Tensor]  # places and signs


class Projections:
    """The projections of all parameters to `size` numbers."""

    def __init__(self, size: int, seed: int, like: Tensor) -> None:
        self._size, self._seed, self._like = size, seed, like

    def sketch(self, name: str, part: Parts) -> Tensor:
        """Return the sketch (n, size) of one parameter's gradients, whatever form they are kept in."""
        if part.shape[0] == 1:
            return self._spread(name, dense_values(part))
        left = self._side(name, 0, (part.shape[0], _BLOCKS))
        right = self._side(name, 1, (part.shape[1],))[1]
        total = self._like.new_zeros(part.n, self._size)
        if part.dense is not None:
            result = self._room(part.n, part.shape[1])
            self._add(result, part.dense.values.view(part.n, *part.shape) * right, left)
            total += self._wrapped(result)
        if part.lookup is not None:
            total += self._lookup(part.lookup, part.n, left, right)
        if part.outer is not None:
            rows, numbers = len(part.outer.owner), part.n * part.shape[0] * part.shape[1]
            convolve = 2 * rows * self._length(part.shape[1]) * _BLOCKS * _PER_TRANSFORM < numbers
            outer = self._convolve if convolve else self._build
            total += outer(part.outer, part.n, left, right)
        return total

    def _side(self, name: str, which: int, shape: tuple[int, ...]) -> Side:
        places, signs = _side(self._seed, name, which, shape, self._size)
        return places.to(self._like.device), signs.to(self._like)

    def _spread(self, name: str, values: Tensor) -> Tensor:
        """Hash vectors (n, length), every entry to several places."""
        result = self._like.new_zeros(self._size, len(values))
        for which in range(_SPREAD):
            places, signs = self._side(name, which, (values.shape[1],))
            result.index_add_(0, places, (values * signs).T.contiguous())
        return result.T.div(_SPREAD**0.5)

    def _targets(self, left: Side, width: int) -> Side:
        """Return place, not wrapped around, and sign of every entry in rows whose left sides are given: (rows, width).

        The signs are the rows' alone: those of the columns are to be put on as well.
        """
        columns = torch.arange(width, device=left[0].device)
        block, inside = columns // _width(width), columns % _width(width)
        return left[0][:, block] + inside, left[1][:, block]

    def _room(self, n: int, width: int) -> Tensor:
        """Return sums by place, with room for what goes on beyond the last: `_wrapped` brings it back."""
        return self._like.new_zeros(n, self._size + _width(width))

    def _add(self, result: Tensor, values: Tensor, left: Side) -> None:
        """Hash some rows of gradients, (n, height, width) with the signs of the columns already on them."""
        if values.device.type == "cpu":  # many times as fast as torch's scattering
            places, signs = (tensor.contiguous().numpy() for tensor in left)
            _add_rows(places, signs, values.contiguous().numpy(), result.numpy(), _width(values.shape[2]))
            return
        where, row_signs = self._targets(left, values.shape[2])
        result.index_add_(1, where.flatten(), (values * row_signs).flatten(1))

    def _length(self, width: int) -> int:
        """Return the length of a Fourier transform in which nothing wraps around by itself."""
        return 1 << (self._size + _width(width) - 1).bit_length()

    def _wrapped(self, values: Tensor) -> Tensor:
        """Return sums by place from sums by place and what goes on beyond the last."""
        result: Tensor = values[:, : self._size].clone()
        for start in range(self._size, values.shape[1], self._size):
            tail = values[:, start : start + self._size]
            result[:, : tail.shape[1]] += tail
        return result

    def _lookup(self, factor: Lookup, n: int, left: Side, right: Tensor) -> Tensor:
        places, signs = self._targets((left[0][factor.index], left[1][factor.index]), len(right))
        places = places % self._size + factor.owner.unsqueeze(1) * self._size
        values = (factor.right * right * signs).flatten()
        return self._like.new_zeros(n * self._size).index_add_(0, places.flatten(), values).view(n, -1)

    def _build(self, factor: Outer, n: int, left: Side, right: Tensor) -> Tensor:
        """Build the gradients, some rows of the parameter at a time, and hash them."""
        height, width = factor.left.shape[1], factor.right.shape[1]
        step = max(1, _SLAB // (n * width))
        lefts = padded(factor.left, factor.owner, n).mT.contiguous()
        rights = padded(factor.right * right, factor.owner, n)
        result = self._room(n, width)
        for start in range(0, height, step):
            rows = slice(start, start + step)
            self._add(result, torch.bmm(lefts[:, rows], rights), (left[0][rows], left[1][rows]))
        return self._wrapped(result)

    def _convolve(self, factor: Outer, n: int, left: Side, right: Tensor) -> Tensor:
        """Convolve the sketches of both sides, some rows at a time, and wrap the end around."""
        length, width = self._length(len(right)), _width(len(right))
        spectrum = self._like.new_zeros(n, length // 2 + 1, dtype=self._like.dtype.to_complex())
        step = max(1, _TRANSFORMED // length)
        signed = factor.right * right
        for start in range(0, len(factor.owner), step):
            rows = slice(start, start + step)
            for block in range(-(-len(right) // width)):
                places, signed_left = left[0][:, block], (factor.left[rows] * left[1][:, block]).T.contiguous()
                hashed = self._like.new_zeros(self._size, signed_left.shape[1]).index_add_(0, places, signed_left).T
                spectra = torch.fft.rfft(hashed, n=length)
                spectra *= torch.fft.rfft(signed[rows, block * width : (block + 1) * width], n=length)
                spectrum += sum_by_owner(spectra, factor.owner[rows], n)
        return self._wrapped(torch.fft.irfft(spectrum, n=length))


@njit(cache=True)
def _add_rows(places: Any, signs: Any, values: Any, result: Any, block: int) -> None:
    """Add every row of `values` (n, height, width), block by block, at its place in `result`, with its sign."""
    n, height, width = values.shape
    for sample in range(n):
        for row in range(height):
            for number in range(-(-width // block)):
                start, place, sign = number * block, places[row, number], signs[row, number]
                given = values[sample, row, start : start + block]
                target = result[sample, place : place + block]
                for column in range(len(given)):  # over slices, so that it becomes a few wide instructions
                    target[column] += sign * given[column]


def _width(columns: int) -> int:
    """Return how many columns a block has."""
    return -(-columns // _BLOCKS)


@lru_cache(maxsize=1024)
def _side(seed: int, name: str, which: int, shape: tuple[int, ...], size: int) -> Side:
    """Return random places and signs for one side of a parameter; remembered, since all clients need the same."""
    rng = generator(seed, "sketch", name, which)
    places = torch.from_numpy(rng.integers(size, size=shape))
    return places, torch.from_numpy(rng.integers(2, size=shape, dtype="int8") * 2 - 1)
