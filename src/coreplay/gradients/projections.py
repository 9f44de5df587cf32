"""Random projections for sketches: the same for everyone with the same seed and the same parameter names.

A matrix parameter's gradient g is hashed entry by entry: g_ij is added, with a random sign for the row and one for the
column, to number (h_i + k_j) mod size, where h and k are random places. Inner products are right on average, with an
error of about 1/√size. Because places add up, the sketch of b aᵀ is the circular convolution of the sketches of b and
of a (Pham and Pagh's tensor sketch), so that a large layer with few rows needs Fourier transforms only; a small one is
built a slab at a time and hashed directly, whichever costs less.

Two large entries in one place would show, so they are kept from meeting in force: the columns are dealt to 8 groups,
each with places of its own for the rows (or two words of a vocabulary could meet in all columns), and the entries of a
vector, such as an output bias, go to 16 places each.
"""

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numba import njit
from torch import Tensor

from coreplay.gradients.factors import Lookup, Outer, Parts, dense_values, padded, sum_by_owner
from coreplay.seeding import generator

_SLAB = 1 << 23  # numbers of built gradients hashed at a time
_GROUPS = 8  # of columns, each with places of its own for the rows
_SPREAD = 16  # places of an entry of a vector
_PER_TRANSFORM = 2  # what a number of a Fourier transform costs, in numbers built and hashed


Side: TypeAlias = tuple[Tensor, Tensor]  # places and signs


class Projections:
    """The projections of all parameters to `size` numbers."""

    def __init__(self, size: int, seed: int, like: Tensor) -> None:
        self._size, self._seed, self._like = size, seed, like
        self._length = 1 << (2 * size - 1).bit_length()  # of a convolution that does not wrap around by itself

    def sketch(self, name: str, part: Parts) -> Tensor:
        """Return the sketch (n, size) of one parameter's gradients, whatever form they are kept in."""
        if part.shape[0] == 1:
            return self._spread(name, dense_values(part))
        left = self._side(name, 0, (part.shape[0], _GROUPS))
        right = self._side(name, 1, (part.shape[1],))
        total = self._like.new_zeros(part.n, self._size)
        if part.dense is not None:
            total += self._hash_rows(part.dense.values, left, right)
        if part.lookup is not None:
            total += self._lookup(part.lookup, part.n, left, right)
        if part.outer is not None:
            rows, numbers = len(part.outer.owner), part.n * part.shape[0] * part.shape[1]
            convolve = 2 * rows * self._length * _GROUPS * _PER_TRANSFORM < numbers
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

    def _targets(self, left: Side, right: Side) -> Side:
        """Return place and sign of every entry in rows whose left sides are given: (rows, width)."""
        group = torch.arange(len(right[0]), device=right[0].device) % _GROUPS
        return (left[0][:, group] + right[0]) % self._size, left[1][:, group] * right[1]

    def _hash_rows(self, values: Tensor, left: Side, right: Side) -> Tensor:
        """Hash gradients given as (n, height x width)."""
        if values.device.type == "cpu":  # five times as fast as torch's scattering, which must transpose first
            result = self._like.new_zeros(len(values), self._size)
            given = values.contiguous().view(len(values), len(left[0]), len(right[0]))
            arrays = (tensor.contiguous().numpy() for tensor in (*left, *right, given, result))
            _scatter(*arrays)
            return result
        places, signs = (side.flatten() for side in self._targets(left, right))
        result = self._like.new_zeros(self._size, len(values))
        step = max(1, _SLAB // len(values))
        for start in range(0, len(places), step):
            slab = values[:, start : start + step] * signs[start : start + step]
            result.index_add_(0, places[start : start + step], slab.T.contiguous())
        return result.T

    def _lookup(self, factor: Lookup, n: int, left: Side, right: Side) -> Tensor:
        places, signs = self._targets((left[0][factor.index], left[1][factor.index]), right)
        places += factor.owner.unsqueeze(1) * self._size
        values = (factor.right * signs).flatten()
        return self._like.new_zeros(n * self._size).index_add_(0, places.flatten(), values).view(n, -1)

    def _build(self, factor: Outer, n: int, left: Side, right: Side) -> Tensor:
        """Build the gradients, some rows of the parameter at a time, and hash them."""
        height, width = factor.left.shape[1], factor.right.shape[1]
        step = max(1, _SLAB // (n * width))
        rights = padded(factor.right, factor.owner, n)
        result = self._like.new_zeros(n, self._size)
        for start in range(0, height, step):
            lefts = padded(factor.left[:, start : start + step], factor.owner, n)
            here = (left[0][start : start + step], left[1][start : start + step])
            result += self._hash_rows(torch.bmm(lefts.mT, rights).flatten(1), here, right)
        return result

    def _convolve(self, factor: Outer, n: int, left: Side, right: Side) -> Tensor:
        """Convolve the sketches of both sides, some rows at a time, and wrap the end around."""
        spectrum = torch.zeros(n, self._length // 2 + 1, dtype=_complex(self._like.dtype), device=self._like.device)
        step = max(1, _SLAB // self._length)
        for start in range(0, len(factor.owner), step):
            rows = slice(start, start + step)
            for group in range(_GROUPS):
                ours = slice(group, None, _GROUPS)
                one = self._transform(factor.left[rows], left[0][:, group], left[1][:, group])
                one *= self._transform(factor.right[rows, ours], right[0][ours], right[1][ours])
                spectrum += sum_by_owner(one, factor.owner[rows], n)
        result = torch.fft.irfft(spectrum, n=self._length)
        wrapped: Tensor = result[:, : self._size].clone()
        tail = result[:, self._size : 2 * self._size - 1]
        wrapped[:, : tail.shape[1]] += tail
        return wrapped

    def _transform(self, rows: Tensor, places: Tensor, signs: Tensor) -> Tensor:
        """Return the Fourier transforms of hashed rows."""
        hashed = self._like.new_zeros(self._size, len(rows)).index_add_(0, places, (rows * signs).T.contiguous())
        transformed: Tensor = torch.fft.rfft(hashed.T, n=self._length)
        return transformed


@njit(cache=True)
def _scatter(row_places: Any, row_signs: Any, column_places: Any, column_signs: Any, values: Any, result: Any) -> None:
    """Add every entry of `values` (n, height, width) to its place in `result` (n, size), row by row."""
    n, height, width = values.shape
    size = result.shape[1]
    places = np.empty(width, np.int64)
    signs = np.empty(width, values.dtype)
    for row in range(height):
        for column in range(width):
            place = row_places[row, column % _GROUPS] + column_places[column]
            places[column] = place - size if place >= size else place
            signs[column] = row_signs[row, column % _GROUPS] * column_signs[column]
        for sample in range(n):
            for column in range(width):
                result[sample, places[column]] += signs[column] * values[sample, row, column]


def _complex(dtype: torch.dtype) -> torch.dtype:
    return torch.complex64 if dtype == torch.float32 else torch.complex128


@lru_cache(maxsize=1024)
def _side(seed: int, name: str, which: int, shape: tuple[int, ...], size: int) -> Side:
    """Return random places and signs for one side of a parameter; remembered, since all clients need the same."""
    rng = generator(seed, "sketch", name, which)
    places = torch.from_numpy(rng.integers(size, size=shape))
    return places, torch.from_numpy(rng.integers(2, size=shape, dtype="int8") * 2 - 1)
