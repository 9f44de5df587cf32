"""Products with vectors, from factors: Gx is one product of scaled rows, Gᵀv is Σ_t left_t · (V right_t)."""

import torch
from torch import Tensor

from coreplay.gradients.factors import Lookup, Outer, Parts, sum_by_owner


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


def _scales(rows: Outer | Lookup, weights: Tensor) -> tuple[Tensor, Tensor | slice]:
    """Return the weight of each row, and which rows matter: in a selection most samples have weight zero."""
    scale = weights[rows.owner].unsqueeze(1)
    keep = scale.squeeze(1).nonzero().squeeze(1)
    if 2 * len(keep) > len(scale):
        return scale, slice(None)
    return scale[keep], keep


def _row_sums(images: Tensor, rows: Outer | Lookup, n: int) -> Tensor:
    return sum_by_owner((images * rows.right).sum(1), rows.owner, n)
