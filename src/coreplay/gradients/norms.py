"""Norms from factors: ‖g_i‖² = Σ_{t,s} (left_t · left_s)(right_t · right_s) over the rows of sample i."""

import torch
from torch import Tensor

from coreplay.gradients.factors import Chunk, Parts, padded


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
