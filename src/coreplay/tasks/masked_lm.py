"""Masked language modelling: predict the hidden pieces of a sentence. The paper's task, with TinyBERT by default.

The loss of a sample is the sum over its masked pieces of −log p(piece); perplexity = exp(Σ losses / number of masked
pieces). Logits, and the last layer, are computed at the masked positions only: no loss depends on the others.

Masks depend on (view, sample) and on nothing else: not on batch, padding, order or process. Every position of every
sample gets its own 64-bit number from a mixing function; the positions with the smallest numbers are masked.
"""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from coreplay.data import FederatedStream, Samples
from coreplay.tasks import task
from coreplay.tasks.base import Batch
from coreplay.tasks.bert import COLUMNS, TextTask, hidden_at
from coreplay.tasks.metrics import Metric, exponential

EVALUATION = 2**63  # the view of evaluation, the same in all runs; no training draws it
IGNORED = -100  # the label of a position that carries no loss
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


class Masked(NamedTuple):
    """A masked batch: the ids to show, the masked positions and the ids to predict there, padded with -100."""

    ids: Ints
    positions: Ints
    targets: Ints


@task("masked_lm")
class MaskedLM(TextTask):
    """Predict masked pieces of sentences (perplexity); TinyBERT by default.

    Parameters
    ----------
    stream
        Texts.
    mask_probability
        The fraction of the pieces of a sentence that are masked, at least one piece.
    **options
        Those of `TextTask`.
    """

    metric = Metric("perplexity", lower_is_better=True, finish=exponential, compared_by_ratio=True)

    def __init__(
        self,
        stream: FederatedStream | None,
        *,
        mask_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15,
        **options: Any,
    ) -> None:
        super().__init__(stream, **options)
        self.mask_probability = mask_probability

    def model(self, seed: int) -> nn.Module:
        """Return a BERT with a masked-language head."""
        from transformers import BertForMaskedLM

        return self.bert(BertForMaskedLM, seed, is_decoder=False)

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Encode and mask: by (view, sample) in training, always the same in evaluation."""
        words = self.vocabulary
        ids, there = self.encode(samples)
        masked = mask(
            ids,
            there & (ids != words.cls) & (ids != words.sep),
            samples.ids,
            view=EVALUATION if view is None else view,
            share=self.mask_probability,
            mask_id=words.mask,
            words=range(words.mask + 1, len(words)),
        )
        where = {"positions": torch.from_numpy(masked.positions), "targets": torch.from_numpy(masked.targets)}
        return self.columns(masked.ids, there) | where

    def outputs(self, model: Any, batch: Any) -> Tensor:
        """Return the logits at the masked positions of all samples, one row per position (see `output_rows`)."""
        logits: Tensor = model.cls(hidden_at(model.bert, batch, batch["positions"])).flatten(0, 1)
        masked = (batch["targets"] != IGNORED).flatten()
        return logits if bool(masked.all()) else logits[masked]

    def output_rows(self, batch: Any) -> Tensor:
        """Return the sample of each masked position."""
        targets: Tensor = batch["targets"]
        return (targets != IGNORED).nonzero()[:, 0]

    def losses(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return the sum of −log p over the masked pieces of each sample."""
        masked = batch["targets"] != IGNORED
        losses = outputs.new_zeros(masked.shape)
        losses[masked] = functional.cross_entropy(outputs, batch["targets"][masked], reduction="none")
        return losses.sum(dim=1)

    def weights(self, batch: Any) -> Tensor:
        """Return the number of masked pieces of each sample."""
        targets: Tensor = batch["targets"]
        return (targets != IGNORED).sum(dim=1).float()

    def largest_weight(self) -> float:
        """Return the number of masked pieces of the longest possible sample."""
        return max(1.0, math.floor(self.mask_probability * self.max_length + 0.5))

    def features(self, model: Any, batch: Any) -> Tensor:
        """Return the mean of the last hidden states over the pieces of each sentence, none of them masked."""
        masked = batch["targets"] != IGNORED
        ids = batch["input_ids"].clone()
        ids[self.output_rows(batch), batch["positions"][masked]] = batch["targets"][masked]
        columns = {name: batch[name] for name in COLUMNS} | {"input_ids": ids}
        hidden = model.bert(**columns).last_hidden_state
        there = batch["attention_mask"].unsqueeze(2)
        mean: Tensor = (hidden * there).sum(dim=1) / there.sum(dim=1)
        return mean


def mask(
    ids: Ints, allowed: NDArray[np.bool_], samples: Words, *, view: int, share: float, mask_id: int, words: range
) -> Masked:
    """Mask `share` of the allowed positions of each row, at least one where there is one.

    As in BERT, 80 % of the masked positions show the mask, 10 % a random piece out of `words`, 10 % the piece itself.

    >>> ids = np.arange(10, 22).reshape(2, 6)
    >>> _, positions, targets = mask(
    ...     ids, np.ones((2, 6), bool), np.array([1, 2], np.uint64), view=0, share=0.3, mask_id=4, words=range(5, 30)
    ... )
    >>> positions.shape, (np.take_along_axis(ids, positions, 1) == targets).all()
    ((2, 2), np.True_)
    """
    n, width = ids.shape
    number = allowed.sum(axis=1)
    counts = np.where(number > 0, np.maximum(1, np.floor(share * number + 0.5)), 0).astype(np.int64)
    keys = draws(view, samples, width, 1)
    keys[~allowed] = np.uint64(2**64 - 1)
    most = int(counts.max(initial=0))
    chosen = np.argsort(keys, axis=1, kind="stable")[:, :most]
    real = np.arange(most) < counts[:, None]
    positions = np.sort(np.where(real, chosen, width), axis=1)
    real = positions < width
    positions = np.where(real, positions, 0)
    targets = np.where(real, np.take_along_axis(ids, positions, axis=1), IGNORED)
    kinds = np.take_along_axis(draws(view, samples, width, 2), positions, axis=1) % np.uint64(10)
    others = np.take_along_axis(draws(view, samples, width, 3), positions, axis=1) % np.uint64(len(words))
    shown = np.where(kinds < 8, mask_id, np.where(kinds == 8, others.astype(np.int64) + words.start, targets))
    result = ids.copy()
    rows = np.broadcast_to(np.arange(n)[:, None], positions.shape)
    result[rows[real], positions[real]] = shown[real]
    return Masked(result, positions, targets)


def draws(view: int, samples: Words, positions: int, purpose: int) -> Words:
    """Return a 64-bit number for each sample and position: (n, positions)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = np.zeros(1, dtype=np.uint64)
    for word in (0, view % 2**64, purpose):
        state = _mixed((state + golden) ^ np.uint64(word))
    rows = _mixed(state + golden ^ samples)
    return _mixed(rows[:, None] + golden * np.arange(1, positions + 1, dtype=np.uint64))


def _mixed(words: Words) -> Words:
    """Mix the bits of 64-bit numbers (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
