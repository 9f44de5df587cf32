"""A task: a model, a per-sample loss, a collate function and a metric.

Everything that learns or measures needs no more than these. The training loss of a batch is Σ losses / Σ weights; the
figure of a test set is ``metric.finish(Σ scores / Σ weights)``: perplexity with the losses as scores and the number of
masked tokens as weights, accuracy with right answers as scores and ones as weights.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from coreplay.seeding import generator
from coreplay.tasks.metrics import Metric

Batch = dict[str, Tensor]
AT_ONCE = 64  # test samples a batch: larger ones take more memory and are no faster


class Task(ABC):
    """What a user subclasses: three methods, and the metric unless it is the mean loss.

    `model`, `collate` and `per_sample_loss` must be there. A task that is registered with the decorator `task` is made
    by ``__init__(stream, **options)``; the options are the keyword-only parameters of its `__init__`.

    Parameters
    ----------
    stream
        The stream of the run. This class has no use for it; a subclass may look at its labels or shapes.

    Attributes
    ----------
    metric : Metric
        What is measured: its name, whether lower is better, and how the mean score becomes the figure.
    batch_first : bool
        Whether every layer of the model has the samples in the first dimension, in their order. The gradients of a
        pool then take one backward pass instead of two.
    """

    metric: Metric = Metric("loss", lower_is_better=True)
    batch_first: bool = False

    def __init__(self, stream: FederatedStream | None = None) -> None:  # noqa: B027  a subclass may need it
        pass

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """Return the model to start from: always the same one for a seed."""

    @abstractmethod
    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Return the samples as tensors with the sample in dimension 0.

        `view` is a random number from which masks or augmentations are made, another one in every epoch of every run;
        None means evaluation, which must be the same in all runs.
        """

    @abstractmethod
    def per_sample_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return one loss a sample, shape (n,)."""

    def weights(self, batch: Any) -> Tensor:
        """Return how much each sample counts in means, shape (n,): by default all alike."""
        return torch.ones(len(next(iter(batch.values()))))

    def largest_weight(self) -> float:
        """Return the largest weight that one sample can have: a server refuses clients that state more."""
        return 1.0 if type(self).weights is Task.weights else math.inf

    def scores(self, model: nn.Module, batch: Any) -> Tensor:
        """Return what the metric sums up over samples, shape (n,): by default the losses."""
        return self.per_sample_loss(model, batch)

    def lengths(self, samples: Samples) -> NDArray[np.int64]:
        """Return how long each sample is, so that batches hold samples of like length."""
        return np.ones(len(samples), dtype=np.int64)

    def features(self, model: nn.Module, batch: Any) -> Tensor | None:
        """Return a feature vector per sample, shape (n, d), for selectors such as herding; None if there are none."""
        return None

    def files(self) -> dict[str, str]:
        """Return what was learnt from the stream and all clients must share: options that are files, as JSON texts."""
        return {}

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the training loss of a batch."""
        return self.per_sample_loss(model, batch).sum() / self.weights(batch).sum()


@dataclass(frozen=True)
class Tally:
    """Sums over a test set: they add up over clients and periods, which means do not.

    >>> (Tally(6.0, 2.0) + Tally(4.0, 2.0)).mean
    2.5
    """

    total: float = 0.0
    weight: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.total + other.total, self.weight + other.weight)

    @property
    def mean(self) -> float:
        """The weighted mean; NaN of nothing."""
        return self.total / self.weight if self.weight else math.nan


def batches(task: Task, samples: Samples, size: int, *, seed: int, epoch: int) -> Iterator[Batch]:
    """Go once through the samples in batches of like length, in random order.

    Samples are shuffled, then sorted by length within runs of 50 batches, cut, and the batches shuffled: padding costs
    little and what stands together still changes from epoch to epoch. The batches, and the view of the samples in
    them (masks), depend on (seed, epoch) alone.
    """
    if size < 1:
        raise InputError(f"the batch size must be at least 1: got {size}")
    rng = generator(seed, "batches", epoch)
    order = rng.permutation(len(samples))
    lengths = task.lengths(samples)
    parts: list[NDArray[np.int64]] = []
    for start in range(0, len(order), 50 * size):
        run = order[start : start + 50 * size]
        run = run[np.argsort(lengths[run], kind="stable")]
        parts += [run[k : k + size] for k in range(0, len(run), size)]
    masks = view(seed, epoch)
    for k in rng.permutation(len(parts)):
        yield task.collate(samples[parts[k]], masks)


def view(seed: int, number: int) -> int:
    """Return the random number that `Task.collate` makes masks from: another one for every seed and number."""
    return int(generator(seed, "view", number).integers(2**62))


def tally(task: Task, model: nn.Module, samples: Samples, size: int = AT_ONCE) -> Tally:
    """Sum the scores of a test set, in evaluation mode, without gradients; the model's mode stays as it was."""
    total = weight = 0.0
    with _evaluating(model):
        for _, batch in _in_order(task, samples, size):
            total += float(task.scores(model, batch).double().sum())
            weight += float(task.weights(batch).double().sum())
    return Tally(total, weight)


def features(task: Task, model: nn.Module, samples: Samples, size: int = AT_ONCE) -> NDArray[np.floating[Any]] | None:
    """Return the feature vectors of samples, one row each, in evaluation mode; None if the task has none."""
    rows: NDArray[np.floating[Any]] | None = None
    with _evaluating(model):
        for places, batch in _in_order(task, samples, size):
            found = task.features(model, batch)
            if found is None:
                return None
            if rows is None:
                rows = np.empty((len(samples), found.shape[1]), dtype=found.numpy().dtype)
            rows[places] = found.numpy()
    return rows


def _in_order(task: Task, samples: Samples, size: int) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """Go through samples in batches of like length, as they are evaluated; with the places of each batch."""
    order = np.argsort(task.lengths(samples), kind="stable") if len(samples) else np.empty(0, dtype=np.int64)
    for start in range(0, len(order), size):
        places = order[start : start + size]
        yield places, task.collate(samples[places])


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, without gradients; afterwards its mode is as it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def evaluate(task: Task, model: nn.Module, samples: Samples, size: int = AT_ONCE) -> float:
    """Return the metric of a test set."""
    return task.metric.figure(tally(task, model, samples, size).mean)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch draw what this seed gives, and leave its own random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "model").integers(2**62)))
        yield
