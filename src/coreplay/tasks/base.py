"""A task: a model, its outputs, a loss per sample, a collate function and a metric.

The training loss of a batch is Σ losses / Σ weights; the figure of a test set is
``metric.finish(Σ metric_terms / Σ weights)``: for perplexity the terms are the losses and the weights the numbers of
masked tokens, for accuracy the terms are 1 where the label is right and the weights are ones.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
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
EVALUATION_BATCH = 64  # samples per batch in evaluation: larger ones take more memory and are no faster
ACCURACY = Metric("accuracy", lower_is_better=False)


class Task(ABC):
    """Subclass it with `model`, `collate`, `outputs` and `losses`, and a metric unless it is the mean loss.

    A registered task is made by ``__init__(stream, **options)``, where options are its keyword-only parameters.

    Parameters
    ----------
    stream
        The stream of the run. This class does not use it; a subclass may read its labels or shapes.

    Attributes
    ----------
    metric : Metric
        What is measured: its name, whether lower is better, and how the mean becomes the figure.
    batch_first : bool
        Whether all layers have the samples in dimension 0, in order: a pool's gradients then take one backward pass.
    """

    metric: Metric = Metric("loss", lower_is_better=True)
    batch_first: bool = False

    def __init__(self, stream: FederatedStream | None = None) -> None:  # noqa: B027  a subclass may need it
        pass

    @staticmethod
    def of(
        model: nn.Module | Callable[[], nn.Module],
        loss: Callable[[Any, Batch], Tensor],
        *,
        collate: Callable[[Samples], Batch] | None = None,
        metric: Metric | str | None = None,
        features: Callable[[nn.Module, Batch], Tensor] | None = None,
    ) -> "Task":
        """Make a task of your own module and loss function, for `coreplay.run(config, stream=..., task=...)`.

        Parameters
        ----------
        model
            The module to start from, or a function that makes it, which then depends on the seed. It is called with
            ``batch["x"]``, or with the whole batch if that has no "x".
        loss
            ``(outputs, batch)`` to one loss per sample, shape (n,).
        collate
            Samples to tensors by name, with the sample in dimension 0; by default "x" (arrays as floats) and "label".
        metric
            A `Metric` of the mean loss; or "accuracy", for which the largest output must be at ``batch["label"]``.
        features
            ``(model, batch)`` to one feature vector per sample, for the selector `herding`.

        Examples
        --------
        >>> from torch.nn import functional
        >>> def loss(outputs, batch):
        ...     return functional.cross_entropy(outputs, batch["label"], reduction="none")
        >>> task = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), loss, metric="accuracy")
        >>> task.metric.name
        'accuracy'
        """
        return _FunctionTask(model, loss, collate or array_batch, metric, features)

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """Return the model to start from: always the same one for a seed."""

    @abstractmethod
    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Return the samples as tensors with the sample in dimension 0.

        `view` determines masks or augmentations, and differs between epochs and runs; None means evaluation.
        """

    @abstractmethod
    def outputs(self, model: nn.Module, batch: Any) -> Any:
        """Return what the model predicts: a tensor (logits), or several by name, with one row per sample.

        Where only some positions carry loss, the rows may be these positions; `output_rows` then says whose they are.
        """

    @abstractmethod
    def losses(self, outputs: Any, batch: Any) -> Tensor:
        """Return one loss per sample, shape (n,), from the outputs."""

    def per_sample_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return one loss per sample, shape (n,)."""
        return self.losses(self.outputs(model, batch), batch)

    def output_rows(self, batch: Any) -> Tensor | None:
        """Return the index of the sample of each output row; None if the outputs have one row per sample."""
        return None

    def weights(self, batch: Any) -> Tensor:
        """Return the weight of each sample in means, shape (n,): 1 by default."""
        return torch.ones(_count(batch))

    def largest_weight(self) -> float:
        """Return the largest possible weight of a sample: a server refuses clients that claim more."""
        return 1.0 if type(self).weights is Task.weights else math.inf

    def metric_terms(self, outputs: Any, batch: Any) -> Tensor:
        """Return what the metric sums over samples, shape (n,): the losses by default."""
        return self.losses(outputs, batch)

    def lengths(self, samples: Samples) -> NDArray[np.int64]:
        """Return the length of each sample, so that batches hold samples of similar length."""
        return np.ones(len(samples), dtype=np.int64)

    def features(self, model: nn.Module, batch: Any) -> Tensor | None:
        """Return a feature vector per sample, shape (n, d), for selectors such as herding; None if there are none."""
        return None

    def shared_artifacts(self) -> dict[str, str]:
        """Return what was learnt from the stream and all clients must share: options that are files, as JSON texts."""
        return {}

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the training loss of a batch."""
        return self.per_sample_loss(model, batch).sum() / self.weights(batch).sum()


class _FunctionTask(Task):
    """A task made of functions, by `Task.of`."""

    def __init__(self, model: Any, loss: Any, collate: Any, metric: Metric | str | None, features: Any) -> None:
        for name, given in (("model", model), ("loss", loss), ("collate", collate)):
            if not callable(given):
                raise InputError(f"{name} must be a function or a module: got {given!r}")
        if isinstance(metric, str) and metric != ACCURACY.name:
            raise InputError(f"metric must be a Metric or 'accuracy': got {metric!r}")
        self._model, self._loss, self._collate, self._features = model, loss, collate, features
        self._accuracy = isinstance(metric, str)
        self.metric = ACCURACY if isinstance(metric, str) else metric or Task.metric

    def model(self, seed: int) -> nn.Module:
        if isinstance(self._model, nn.Module):
            return deepcopy(self._model)
        with seeded(seed):
            made = self._model()
        if not isinstance(made, nn.Module):
            raise InputError(f"model must return a torch module: got {made!r}")
        return made

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        made: Batch = self._collate(samples)
        return made

    def outputs(self, model: nn.Module, batch: Any) -> Any:
        return model(batch.get("x", batch))

    def losses(self, outputs: Any, batch: Any) -> Tensor:
        found: Tensor = self._loss(outputs, batch)
        if found.shape != (_count(batch),):
            problem = f"shape ({_count(batch)},): got shape {tuple(found.shape)}"
            raise InputError(f"loss must return one number per sample, {problem}; torch's do with reduction='none'")
        return found

    def metric_terms(self, outputs: Any, batch: Any) -> Tensor:
        return is_right(outputs, batch) if self._accuracy else self.losses(outputs, batch)

    def features(self, model: nn.Module, batch: Any) -> Tensor | None:
        return None if self._features is None else self._features(model, batch)


def array_batch(samples: Samples) -> Batch:
    """Return "x", the content as floats, and "label", the numbers of the labels."""
    if not isinstance(samples.content, np.ndarray):
        raise InputError("Task.of needs collate= for texts: a function of samples that returns a dictionary of tensors")
    x = np.ascontiguousarray(samples.content, dtype=np.float32)
    return {"x": torch.from_numpy(x), "label": torch.tensor(samples.label)}


def is_right(outputs: Tensor, batch: Any) -> Tensor:
    """Return 1 where the largest output is at the label, else 0."""
    right: Tensor = outputs.argmax(dim=1) == batch["label"]
    return right.float()


def _count(batch: Any) -> int:
    return len(next(iter(batch.values())))


@dataclass(frozen=True)
class WeightedSum:
    """The sums of a metric's terms and of weights over a test set: they add up over clients and periods.

    >>> (WeightedSum(6.0, 2.0) + WeightedSum(4.0, 2.0)).mean
    2.5
    """

    total: float = 0.0
    weight: float = 0.0

    def __add__(self, other: "WeightedSum") -> "WeightedSum":
        return WeightedSum(self.total + other.total, self.weight + other.weight)

    @property
    def mean(self) -> float:
        """The weighted mean; NaN if there is nothing."""
        return self.total / self.weight if self.weight else math.nan


def batches(task: Task, samples: Samples, size: int, *, seed: int, epoch: int) -> Iterator[Batch]:
    """Iterate once over the samples in random batches of similar length, which (seed, epoch) determines."""
    masks = view(seed, epoch)
    for rows in batch_rows(task, samples, size, seed=seed, epoch=epoch):
        yield task.collate(samples[rows], masks)


def batch_rows(task: Task, samples: Samples, size: int, *, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """Iterate once over the numbers of the samples, a batch at a time.

    Samples are shuffled, sorted by length within runs of 50 batches and cut, and the batches are shuffled.
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
    for k in rng.permutation(len(parts)):
        yield parts[k]


def view(seed: int, number: int) -> int:
    """Return the random number that `Task.collate` makes masks from, which differs by seed and number."""
    return int(generator(seed, "view", number).integers(2**62))


def metric_sum(task: Task, model: nn.Module, samples: Samples, size: int = EVALUATION_BATCH) -> WeightedSum:
    """Sum the metric's terms over a test set, in evaluation mode, without gradients; the model's mode is restored."""
    total = weight = 0.0
    with evaluating(model):
        for _, batch in _in_order(task, samples, size):
            total += float(task.metric_terms(task.outputs(model, batch), batch).double().sum())
            weight += float(task.weights(batch).double().sum())
    return WeightedSum(total, weight)


def evaluate(task: Task, model: nn.Module, samples: Samples, size: int = EVALUATION_BATCH) -> float:
    """Return the metric of a test set."""
    return task.metric.figure(metric_sum(task, model, samples, size).mean)


def features(task: Task, model: nn.Module, samples: Samples, size: int = EVALUATION_BATCH) -> NDArray[Any] | None:
    """Return the feature vectors of samples, one row per sample, in evaluation mode; None if the task has none."""
    rows: NDArray[Any] | None = None
    with evaluating(model):
        for places, batch in _in_order(task, samples, size):
            found = task.features(model, batch)
            if found is None:
                return None
            if rows is None:
                rows = np.empty((len(samples), found.shape[1]), dtype=found.numpy().dtype)
            rows[places] = found.numpy()
    return rows


def sample_losses(task: Task, model: nn.Module, samples: Samples, size: int = EVALUATION_BATCH) -> NDArray[np.float64]:
    """Return the loss of each sample, in evaluation mode."""
    found = np.empty(len(samples))
    with evaluating(model):
        for places, batch in _in_order(task, samples, size):
            found[places] = task.per_sample_loss(model, batch).cpu().numpy()
    return found


def _in_order(task: Task, samples: Samples, size: int) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """Iterate over samples in batches of similar length, with the places of each batch's samples."""
    order = np.argsort(task.lengths(samples), kind="stable") if len(samples) else np.empty(0, dtype=np.int64)
    for start in range(0, len(order), size):
        places = order[start : start + size]
        yield places, task.collate(samples[places])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, without gradients; afterwards restore its mode."""
    training = model.training
    if any(part.training for part in model.modules()):
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if training:
            model.train()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, and restore their state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "model").integers(2**62)))
        yield
