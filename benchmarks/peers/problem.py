"""What all sides train: the same clients, samples, masks, batches, model and plain SGD.

Clients' data is cut to whole batches. Peers get it encoded and masked once, in the order in which our engine goes
through it in the first round, so that slices of BATCH rows are our batches: losses after the first round must agree.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coreplay.data import FederatedStream, load
from coreplay.seeding import generator
from coreplay.tasks import Batch, Task, batches, metric_sum
from coreplay.tasks.masked_lm import IGNORED, MaskedLM
from coreplay.tasks.tokenization import Vocabulary, tokenizer, train

CLIENTS, BATCH, RATE, SEED = 50, 16, 0.1, 0
LOSSES = ("plain", "ours")  # transformers' own loss at all places of the padded batch; our task's


@dataclass(frozen=True)
class Problem:
    """The stream (one period) and the task."""

    stream: FederatedStream
    task: Task

    @property
    def samples(self) -> int:
        """Samples of a round: every client takes part with all of its own."""
        return int(self.stream.counts("train").sum())

    def test_loss(self, model: Any) -> float:
        """Return the mean loss of a model on the test set."""
        return metric_sum(self.task, model, self.stream.of_period(0, "test")).mean

    def data(self, client: str, loss: str) -> Batch:
        """Return a client's samples as tensors, padded to its longest, in the order of our first round."""
        order = int(generator(SEED, client, 0, "training", 0).integers(2**62))
        parts = list(batches(self.task, self.stream.samples(client, 0), BATCH, seed=order, epoch=0))
        data = {name: _stacked([part[name] for part in parts], name) for name in parts[0]}
        if loss == "ours":
            return data
        rows, width = data["input_ids"].shape
        labels = torch.full((rows, width + 1), IGNORED)  # the last column takes the places that are none
        labels.scatter_(1, torch.where(data["targets"] != IGNORED, data["positions"], width), data["targets"])
        inputs = {name: data[name] for name in ("input_ids", "attention_mask")}
        return inputs | {"labels": labels[:, :width].contiguous()}

    def loss(self, loss: str) -> Callable[[Any, Batch], Tensor]:
        """Return the training loss of a batch, from the model and the batch."""
        return self.task.loss if loss == "ours" else lambda model, batch: model(**batch).loss


@dataclass
class Clock:
    """Takes the time of rounds, without what is done between `stop` and `start`, and the loss after the first."""

    problem: Problem
    seconds: list[float] = field(default_factory=list)
    loss: float = float("nan")

    def start(self) -> None:
        """Begin a round."""
        self._began = time.perf_counter()

    def stop(self, model: Callable[[], Any]) -> None:
        """End a round, which gave this model."""
        self.seconds.append(time.perf_counter() - self._began)
        if len(self.seconds) == 1:
            self.loss = self.problem.test_loss(model())


def _stacked(parts: list[Tensor], name: str) -> Tensor:
    """Put batches of unlike width below each other; 0 is [PAD], no attention, and a place as good as any."""
    width, filler = max(part.shape[1] for part in parts), IGNORED if name == "targets" else 0
    return torch.cat([functional.pad(part, (0, width - part.shape[1]), value=filler) for part in parts])


@lru_cache(1)
def problem(words: int) -> Problem:
    """Return 50 clients and a TinyBERT without dropout with a vocabulary of `words` pieces; unused ones fill it up."""
    drawn = load("synthetic", num_clients=CLIENTS, num_periods=1, samples=60, seed=1)
    rows: list[tuple[str, bool, str, int]] = []
    for split in ("train", "test"):
        for client, _, cell in drawn.cells(split):
            samples = cell if split == "test" else cell[: len(cell) // BATCH * BATCH]
            pairs = zip(samples.texts, samples.timestamp.tolist(), strict=True)
            rows += [(client, split == "test", text, time) for text, time in pairs]
    client, test, texts, times = (list(column) for column in zip(*rows, strict=True))
    stream = FederatedStream(client, [0] * len(rows), test, texts, timestamp=times)
    pieces = train(stream.of_period(0).texts, words)
    pieces += [f"[unused{k}]" for k in range(words - len(pieces))]
    return Problem(stream, MaskedLM(stream, vocabulary=Vocabulary(tokenizer(pieces)), dropout=0.0))
