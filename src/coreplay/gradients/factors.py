"""What is kept of a parameter's per-sample gradients: factors, from which every product follows.

The gradient of a sample is a sum over rows (tokens, positions) that belong to it:

* `Outer`: Σ_r left_r right_rᵀ, as in a linear layer (left: output gradient, right: input);
* `Lookup`: Σ_r e_index(r) right_rᵀ, as in an embedding (a left factor that is a unit vector);
* `Dense`: the gradient itself, for small parameters and whatever has no rule.

A parameter has `Outer`, `Lookup` or both (tied weights), or `Dense` alone. Norms are
‖g_i‖² = Σ_{t,s} (left_t · left_s)(right_t · right_s) over the rows of sample i, Gx is one product of scaled rows, and
Gᵀv is Σ_t left_t · (V right_t).
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outer:
    """Rows (left_r, right_r), sorted by owner; a sample's gradient is the sum of left rightᵀ over them."""

    left: Tensor
    right: Tensor
    owner: Tensor


@dataclass(frozen=True)
class Lookup:
    """Rows (index_r, right_r), sorted by owner; row index_r of the gradient receives right_r."""

    index: Tensor
    right: Tensor
    owner: Tensor


@dataclass(frozen=True)
class Dense:
    """One flattened gradient per sample: (n, numel)."""

    values: Tensor


RowFactor: TypeAlias = Outer | Lookup
Factor: TypeAlias = RowFactor | Dense
F = TypeVar("F", Outer, Lookup)


@dataclass(frozen=True)
class Parts:
    """All factors of one parameter for a chunk of samples: `dense` alone, or `outer` and `lookup`."""

    shape: tuple[int, int]  # of the parameter as a matrix: left size, right size
    n: int
    outer: Outer | None = None
    lookup: Lookup | None = None
    dense: Dense | None = None

    @property
    def row_factors(self) -> list[RowFactor]:
        """The factors that are rows."""
        return [factor for factor in (self.outer, self.lookup) if factor is not None]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the factors."""
        factors = (self.outer, self.lookup, self.dense)
        return [tensor for factor in factors if factor is not None for tensor in vars(factor).values()]

    @property
    def like(self) -> Tensor:
        """Some tensor of the factors, for its dtype and device."""
        return self.row_factors[0].right if self.dense is None else self.dense.values


@dataclass(frozen=True)
class Chunk:
    """The factors of the samples `start` up to `stop`; a parameter that is missing has zero gradients."""

    start: int
    stop: int
    parts: dict[str, Parts]
    reached: bool  # whether the losses depend on any selected parameter

    def nbytes(self, besides: Collection[int] = ()) -> int:
        """Return the memory held, shared tensors counted once, without the storages `besides`."""
        storages: dict[int, int] = {}
        for part in self.parts.values():
            for tensor in part.tensors:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        return sum(size for place, size in storages.items() if place not in besides)


def as_matrix(parameter: Tensor) -> tuple[int, int]:
    """Return the parameter's shape as a matrix: first dimension by all others."""
    if parameter.dim() < 2:
        return 1, parameter.numel()
    return parameter.shape[0], parameter[0].numel()


def sum_by_owner(values: Tensor, owner: Tensor, n: int) -> Tensor:
    """Add up the rows of each sample: (rows, d) to (n, d)."""
    return values.new_zeros(n, *values.shape[1:]).index_add_(0, owner, values)


def merge(factors: list[Factor], shape: tuple[int, int], n: int) -> Parts:
    """Join the factors of all uses of one parameter: their rows add up, and cross terms follow."""
    outers = [factor for factor in factors if isinstance(factor, Outer)]
    lookups = [factor for factor in factors if isinstance(factor, Lookup)]
    denses = [factor for factor in factors if isinstance(factor, Dense)]
    rows = Parts(shape, n, _join(outers), _join(lookups))
    numbers = sum(factor.right.numel() for factor in rows.row_factors)
    numbers += 0 if rows.outer is None else rows.outer.left.numel()
    if not denses and numbers < n * shape[0] * shape[1]:
        return rows
    values = [dense.values for dense in denses]  # the gradients themselves take less room
    if rows.row_factors:
        values.append(dense_values(rows))
    return Parts(shape, n, dense=Dense(values[0] if len(values) == 1 else torch.stack(values).sum(0)))


def right_side(parts: Parts) -> Hashable | None:
    """Return what tells the right sides of two parameters' rows apart, or None if there is more than these rows."""
    if parts.outer is None or parts.lookup is not None:
        return None
    right, owner = parts.outer.right, parts.outer.owner
    return right.data_ptr(), right.shape, right.stride(), owner.cpu().numpy().tobytes()


def stack(several: list[Parts]) -> Parts:
    """Return the factors of parameters with one right side, as of one parameter that holds them all."""
    if len(several) == 1:
        return several[0]
    outers = [parts.outer for parts in several if parts.outer is not None]
    left = torch.cat([outer.left for outer in outers], 1)
    return Parts((left.shape[1], several[0].shape[1]), several[0].n, Outer(left, outers[0].right, outers[0].owner))


def dense_values(parts: Parts) -> Tensor:
    """Return the gradients of the parameter itself, (n, numel)."""
    if parts.dense is not None:
        return parts.dense.values
    total = parts.like.new_zeros(parts.n, parts.shape[0] * parts.shape[1])
    if parts.outer is not None:
        left = padded(parts.outer.left, parts.outer.owner, parts.n)
        right = padded(parts.outer.right, parts.outer.owner, parts.n)
        total = torch.bmm(left.transpose(1, 2), right).flatten(1)
    if parts.lookup is not None:
        place = parts.lookup.owner * parts.shape[0] + parts.lookup.index
        total.view(-1, parts.shape[1]).index_add_(0, place, parts.lookup.right)
    return total


def padded(rows: Tensor, owner: Tensor, n: int) -> Tensor:
    """Lay out rows sorted by owner as (n, longest, d), with zero rows at the end of shorter samples."""
    counts = torch.bincount(owner, minlength=n)
    longest = int(counts.max())
    if len(rows) == n * longest:
        return rows.view(n, longest, rows.shape[1])
    position = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[owner]
    result = rows.new_zeros(n, longest, rows.shape[1])
    result[owner, position] = rows
    return result


def _join(factors: list[F]) -> F | None:
    """Return the rows of several factors of one kind as one factor, sorted by owner; None if there is none."""
    if len(factors) < 2:
        return factors[0] if factors else None
    _, order = torch.cat([factor.owner for factor in factors]).sort(stable=True)
    columns = zip(*(vars(factor).values() for factor in factors), strict=True)
    return type(factors[0])(*(torch.cat(column)[order] for column in columns))


def squared_norms(chunk: Chunk) -> Tensor:
    """Return ‖g_i‖² for every sample of a chunk, in float64."""
    total = torch.zeros(chunk.stop - chunk.start, dtype=torch.float64)
    for part in chunk.parts.values():
        total += _squared_norms(part).double().cpu()
    return total.clamp_(min=0.0)


def _squared_norms(part: Parts) -> Tensor:
    if part.dense is not None:
        return part.dense.values.square().sum(1)
    terms = []
    if part.outer is not None:
        left = padded(part.outer.left, part.outer.owner, part.n)
        right = padded(part.outer.right, part.outer.owner, part.n)
        terms.append((left @ left.mT) * (right @ right.mT))
    if part.lookup is not None:
        index = padded(part.lookup.index.unsqueeze(1), part.lookup.owner, part.n).squeeze(2)
        looked = padded(part.lookup.right, part.lookup.owner, part.n)
        terms.append((looked @ looked.mT) * (index.unsqueeze(1) == index.unsqueeze(2)))  # padding: looked is 0
        if part.outer is not None:
            crossed = left.gather(2, index.unsqueeze(1).expand(-1, left.shape[1], -1))
            terms.append(2 * crossed * (right @ looked.mT))
    sums = [term.sum((1, 2), dtype=torch.float64) for term in terms]
    return torch.stack(sums).sum(0)


def add_combination(target: Tensor, part: Parts, weights: Tensor) -> None:
    """Add Σ_i weights_i g_i of one parameter to `target`, its flat gradient."""
    matrix = target.view(part.shape)
    if part.dense is not None:
        matrix += (weights @ part.dense.values).view(part.shape)
    if part.outer is not None:
        scale, keep = _scales(part.outer, weights)
        left, right = part.outer.left[keep], part.outer.right[keep]
        if left.shape[1] < right.shape[1]:
            left = left * scale
        else:
            right = right * scale
        matrix.addmm_(left.T, right)
    if part.lookup is not None:
        scale, keep = _scales(part.lookup, weights)
        matrix.index_add_(0, part.lookup.index[keep], part.lookup.right[keep] * scale)


def projection(part: Parts, vector: Tensor) -> Tensor:
    """Return ⟨g_i, v⟩ of one parameter for every sample of a chunk, in float64."""
    matrix = vector.view(part.shape)
    total = torch.zeros(part.n, dtype=torch.float64, device=vector.device)
    if part.dense is not None:
        total += part.dense.values @ vector
    if part.outer is not None:
        total += _row_sums(part.outer.left @ matrix, part.outer, part.n)
    if part.lookup is not None:
        total += _row_sums(matrix[part.lookup.index], part.lookup, part.n)
    return total


def _scales(rows: RowFactor, weights: Tensor) -> tuple[Tensor, Tensor | slice]:
    """Return the weight of each row, and which rows matter: in a selection most samples have weight zero."""
    scale = weights[rows.owner].unsqueeze(1)
    keep = scale.squeeze(1).nonzero().squeeze(1)
    if 2 * len(keep) > len(scale):
        return scale, slice(None)
    return scale[keep], keep


def _row_sums(images: Tensor, rows: RowFactor, n: int) -> Tensor:
    return sum_by_owner((images * rows.right).sum(1), rows.owner, n)
