"""How kept samples are mixed with new ones in training: the `[replay]` fields mixing and retrieval.

- `concatenate` (the paper): batches of the pool in random order.
- `ratio` (experience replay, Chaudhry et al. 2019): a fixed fraction of each batch is drawn from the buffer, and an
  epoch is one pass over the new samples.
- `weight`: batches of the pool, in which the loss of a kept sample has a weight: a constant, or the number of samples
  that it stands for, seen / kept, up to a limit.

With `ratio`, retrieval decides which kept samples are drawn: uniformly, or by MIR (maximally interfered retrieval,
Aljundi et al. 2019b): of some candidates, those whose loss the coming step on new samples would raise most.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coreplay.array_types import Ints
from coreplay.data import Samples
from coreplay.learning.context import LearningContext
from coreplay.learning.hooks import LearningHook
from coreplay.tasks import batch_rows


@dataclass(frozen=True, kw_only=True)
class Mixing(LearningHook):
    """Decides what each step trains on; the fields are those of `[replay]`."""

    mixing: Literal["concatenate", "ratio", "weight"] = "concatenate"
    kept_fraction: float = 0.5
    kept_weight: float = 1.0
    max_kept_weight: float = 10.0
    retrieval: Literal["uniform", "mir"] = "uniform"
    retrieval_candidates: int = 50
    extra_passes: ClassVar[str] = "MIR: three forward passes and one backward pass per step"

    def batches(self, ctx: LearningContext, epoch: int) -> Iterator[Samples] | None:
        """Return the batches of an epoch."""
        if self.mixing == "concatenate" or not len(ctx.kept):
            return None
        if self.mixing == "weight":
            return self._weighted(ctx)
        return self._drawn(ctx) if len(ctx.new) else None

    def _weighted(self, ctx: LearningContext) -> Iterator[Samples]:
        weight = self.kept_weight or min(self.max_kept_weight, max(1.0, ctx.seen / len(ctx.kept)))
        scale = np.where(ctx.pool.arrived < ctx.period, weight, 1.0)
        pool = ctx.pool.replaced(weight=ctx.pool.weight * scale)
        for rows in self._rows(ctx, pool, ctx.settings.batch_size):
            yield pool[rows]

    def _drawn(self, ctx: LearningContext) -> Iterator[Samples]:
        size, kept, new = ctx.settings.batch_size, ctx.kept, ctx.new
        count = min(max(round(self.kept_fraction * size), 1), max(size - 1, 1))
        for rows in self._rows(ctx, new, max(size - count, 1)):
            batch = new[rows]
            if self.retrieval == "mir":
                chosen = self._interfered(ctx, batch, kept, count)
            else:
                chosen = ctx.rng.choice(len(kept), count, replace=count > len(kept))
            yield Samples.joined([batch, kept[chosen]])

    def _interfered(self, ctx: LearningContext, batch: Samples, kept: Samples, count: int) -> Ints:
        """Return the candidates whose loss rises most by a step on the batch."""
        rows = ctx.rng.choice(len(kept), min(self.retrieval_candidates, len(kept)), replace=False)
        if len(rows) <= count:
            return rows
        view, limit = ctx.draw_view(), ctx.settings.max_grad_norm
        gradient = ctx.gradient(batch, view)
        if limit:
            gradient *= min(1.0, limit / max(float(gradient.norm()), 1e-12))
        ahead = ctx.at(ctx.parameters - ctx.settings.learning_rate * gradient)
        rise = ahead.losses(kept[rows], view) - ctx.losses(kept[rows], view)
        return rows[np.argsort(-rise.numpy(), kind="stable")[:count]]

    def _rows(self, ctx: LearningContext, samples: Samples, size: int) -> Iterator[Ints]:
        return batch_rows(ctx.task, samples, size, seed=int(ctx.rng.integers(2**62)), epoch=0)
