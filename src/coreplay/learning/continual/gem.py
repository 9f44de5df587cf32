"""GEM (Lopez-Paz and Ranzato 2017) and A-GEM (Chaudhry et al. 2019): no step may raise the loss on the buffer.

Steps train on new samples alone. With g the gradient of a step and g_k that of the kept samples of period k, GEM steps
along the vector nearest to g that has no negative product with any g_k; A-GEM has one constraint, the mean gradient of
kept samples drawn at random:

    g̃ = g − (gᵀg_ref / g_refᵀg_ref) g_ref    if gᵀg_ref < 0
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import nnls
from torch import Tensor

from coreplay.data import Samples
from coreplay.learning.context import LearningContext, Step
from coreplay.learning.hooks import LearningHook, continual_method
from coreplay.tasks import batch_rows


def new_batches(ctx: LearningContext) -> Iterator[Samples]:
    """Return shuffled batches of the new samples; of the whole pool where nothing is new."""
    samples = ctx.new if len(ctx.new) else ctx.pool
    for rows in batch_rows(ctx.task, samples, ctx.settings.batch_size, seed=int(ctx.rng.integers(2**62)), epoch=0):
        yield samples[rows]


def drawn(ctx: LearningContext, samples: Samples, most: int) -> Samples:
    """Return at most `most` of some samples, drawn at random."""
    if len(samples) <= most:
        return samples
    return samples[np.sort(ctx.rng.choice(len(samples), most, replace=False))]


def projected(gradient: Tensor, reference: Tensor) -> Tensor:
    """Return the gradient without its part against the reference."""
    overlap = gradient @ reference
    return gradient if overlap >= 0 else gradient - overlap / (reference @ reference) * reference


@continual_method("a_gem")
@dataclass(frozen=True, kw_only=True)
class AGEM(LearningHook):
    """Take away the part of a step that would raise the mean loss on kept samples.

    Parameters
    ----------
    reference_samples
        The number of kept samples, drawn at random in each step, whose gradient is the reference.
    """

    reference_samples: Annotated[int, Field(ge=1)] = 64
    from_period: ClassVar[int] = 1
    extra_passes: ClassVar[str] = "one forward and backward pass over kept samples per step"

    def batches(self, ctx: LearningContext, epoch: int) -> Iterator[Samples]:
        """Train on new samples."""
        return new_batches(ctx)

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Project on the half-space in which the kept samples lose nothing."""
        if not len(ctx.kept):
            return gradient
        return projected(gradient, ctx.gradient(drawn(ctx, ctx.kept, self.reference_samples), ctx.draw_view()))


@continual_method("gem")
@dataclass(frozen=True, kw_only=True)
class GEM(LearningHook):
    """Take away what would raise the loss on the kept samples of any one earlier period.

    Parameters
    ----------
    reference_samples
        The number of kept samples per period, drawn at random in each step, whose gradient is a reference.
    margin
        The least share of each reference that a corrected step keeps, which favours earlier periods.
    """

    reference_samples: Annotated[int, Field(ge=1)] = 64
    margin: Annotated[float, Field(ge=0)] = 0.0
    from_period: ClassVar[int] = 1
    extra_passes: ClassVar[str] = "one forward and backward pass over kept samples per earlier period and step"

    def batches(self, ctx: LearningContext, epoch: int) -> Iterator[Samples]:
        """Train on new samples."""
        return new_batches(ctx)

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Return g + Gᵀv with the v ≥ margin that makes it shortest: the dual of the projection."""
        kept = ctx.kept
        if not len(kept):
            return gradient
        periods = [kept[np.flatnonzero(kept.arrived == period)] for period in np.unique(kept.arrived)]
        view = ctx.draw_view()
        G = torch.stack([ctx.gradient(drawn(ctx, samples, self.reference_samples), view) for samples in periods])
        products = (G @ gradient).double().numpy()
        if (products >= 0).all():
            return gradient
        gram = (G @ G.T).double().numpy()
        gram[np.diag_indices_from(gram)] += 1e-8 * np.trace(gram) + 1e-30
        shifted = products + self.margin * gram.sum(axis=1)
        root = np.linalg.cholesky(gram)
        multipliers, _ = nnls(root.T, -np.linalg.solve(root, shifted))
        return gradient + torch.from_numpy(multipliers + self.margin).to(gradient.dtype) @ G
