"""What a learning hook sees at a client: the step that is being taken, and everything around it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coreplay.data import Samples
from coreplay.learning.parameter_vector import FlatModel
from coreplay.tasks import Task, evaluating

State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Step:
    """One training step as a hook sees it: the samples, their tensors, the model's outputs and per-sample losses."""

    samples: Samples
    batch: Any
    outputs: Any
    losses: Tensor
    weights: Tensor

    @property
    def mean_loss(self) -> Tensor:
        """The loss that is minimised, without what hooks add: Σ losses / Σ weights."""
        return self.losses.sum() / self.weights.sum()

    def rows(self, ctx: "LearningContext", which: str) -> Tensor | None:
        """Return which rows of the outputs are of "new" or of "kept" samples; None for "all"."""
        if which == "all":
            return None
        kept = torch.from_numpy(self.samples.arrived < ctx.period)
        owners = ctx.task.output_rows(self.batch)
        chosen = kept if which == "kept" else ~kept
        return chosen if owners is None else chosen[owners]


@dataclass(frozen=True)
class LearningContext:
    """Everything that a hook may see at a client.

    Attributes
    ----------
    task : Task
        The task of the run.
    flat : FlatModel
        The model that is being trained; `parameters` are its current values.
    pool : Samples
        The client's new samples and its buffer, as columns: `pool.arrived` tells new from kept.
    start : Tensor
        The trainable parameters at the start of the round.
    period_model : Tensor or None
        The whole model at the start of the period, running statistics included, if a hook sets `needs_period_start`.
    received : mapping
        What the hook's own `broadcast` sent, by name.
    state : mapping
        What the hook's last `finish_round` or `finish_period` at this client returned; empty at first.
    client : str
        The client whose turn it is.
    period : int
        The period.
    round : int
        The round of the period.
    settings : Any
        The `[federated]` table of the configuration: learning_rate, epochs, batch_size and so on.
    rng : numpy Generator
        The hook's own random numbers in this round.
    seen : int
        How many samples the client received before this period.
    steps : int
        How many optimizer steps the client took; set in `finish_round`.
    """

    task: Task
    flat: FlatModel
    pool: Samples
    start: Tensor
    period_model: Tensor | None
    received: Mapping[str, Tensor]
    state: State
    client: str
    period: int
    round: int
    settings: Any
    rng: np.random.Generator
    seen: int = 0
    steps: int = 0

    @property
    def model(self) -> nn.Module:
        """The model that is being trained."""
        return self.flat.model

    @property
    def parameters(self) -> Tensor:
        """The trainable parameters as one vector: a view, not a copy."""
        return self.flat.values[: self.flat.trainable]

    @property
    def period_start(self) -> Tensor:
        """The trainable parameters at the start of the period."""
        assert self.period_model is not None, "the hook must set needs_period_start"
        return self.period_model[: self.flat.trainable]

    @property
    def kept(self) -> Samples:
        """The samples of the pool that come from the buffer."""
        return self.pool[np.flatnonzero(self.pool.arrived < self.period)]

    @property
    def new(self) -> Samples:
        """The samples of the pool that arrived in this period."""
        return self.pool[np.flatnonzero(self.pool.arrived == self.period)]

    def at(self, values: Tensor) -> "LearningContext":
        """Return this context with a second model that has other values: a whole model, or parameters alone."""
        twin = self.flat.twin
        twin.values[len(values) :] = self.flat.values[len(values) :]
        if twin.source is not values:  # the same tensor again, step by step, need not be copied again
            twin.values[: len(values)], twin.source = values, values
        return replace(self, flat=twin)

    def gradient(self, samples: Samples, view: int | None = None) -> Tensor:
        """Return the gradient of the mean loss on some samples at the current parameters, as one vector."""
        with evaluating(self.model), torch.enable_grad():
            batch = self.task.collate(samples, view)
            loss = self.task.per_sample_loss(self.model, batch).sum() / self.task.weights(batch).sum()
            return self.flat.joined(torch.autograd.grad(loss, self.flat.parameters, allow_unused=True))

    def losses(self, samples: Samples, view: int | None = None) -> Tensor:
        """Return the loss of each sample per unit of its weight, such as a token, in evaluation mode."""
        with evaluating(self.model), torch.no_grad():
            batch = self.task.collate(samples, view)
            return self.task.per_sample_loss(self.model, batch) / self.task.weights(batch).clamp(min=1)

    def outputs(self, batch: Any) -> Any:
        """Return the model's outputs for a collated batch, in evaluation mode and without gradients."""
        with evaluating(self.model), torch.no_grad():
            return self.task.outputs(self.model, batch)

    def fisher(self, most: int) -> Tensor:
        """Return the mean squared gradient of at most `most` samples of the pool, drawn at random.

        It is the diagonal of the empirical Fisher information.
        """
        n = len(self.pool)
        rows = np.arange(n) if n <= most else np.sort(self.rng.choice(n, most, replace=False))
        view, found = self.draw_view(), torch.zeros_like(self.start)
        for row in rows:
            found += self.gradient(self.pool[[row]], view).square_()
        return found / max(len(rows), 1)

    def draw_view(self) -> int:
        """Draw a view, which determines the masks or augmentations of a batch."""
        return int(self.rng.integers(2**62))
