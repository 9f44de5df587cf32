"""Masked language modelling: predict the hidden pieces of a sentence. The paper's task, with TinyBERT by default.

The loss of a sample is the sum over its masked pieces of −log p(piece); perplexity = exp(Σ losses / number of masked
pieces). Logits, and the last layer, are computed at the masked positions only: the decoder is half of a small model's
work, and no loss depends on the other positions.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from coreplay.tasks.api import task
from coreplay.tasks.base import Batch
from coreplay.tasks.bert import COLUMNS, TextTask, hidden_at
from coreplay.tasks.masking import EVALUATION, IGNORED, mask
from coreplay.tasks.metrics import Metric, exponential


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

    def __init__(self, stream: FederatedStream | None, *, mask_probability: float = 0.15, **options: Any) -> None:
        if not 0 < mask_probability < 1:
            raise InputError(f"mask_probability must be between 0 and 1: got {mask_probability}")
        super().__init__(stream, **options)
        self.mask_probability = mask_probability

    def model(self, seed: int) -> nn.Module:
        """Return a BERT with a masked-language head."""
        from transformers import BertForMaskedLM

        return self.bert(BertForMaskedLM, seed, is_decoder=False)

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Encode and mask: by (view, sample) in training, always the same in evaluation."""
        words = self.vocabulary
        batch, ids, there = self.encoded(samples)
        masked = mask(
            ids,
            there & (ids != words.cls) & (ids != words.sep),
            samples.ids,
            view=EVALUATION if view is None else view,
            share=self.mask_probability,
            mask_id=words.mask,
            words=range(words.mask + 1, len(words)),
        )
        arrays = {"input_ids": masked.ids, "positions": masked.positions, "targets": masked.targets}
        return batch | {name: torch.from_numpy(array) for name, array in arrays.items()}

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the logits at the masked positions of all samples, one row per position (see `output_rows`)."""
        bert: Any = model
        logits: Tensor = bert.cls(hidden_at(bert.bert, batch, batch["positions"])).flatten(0, 1)
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

    def features(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean of the last hidden states over the pieces of each sentence, none of them masked."""
        bert: Any = model
        masked = batch["targets"] != IGNORED
        ids = batch["input_ids"].clone()
        ids[self.output_rows(batch), batch["positions"][masked]] = batch["targets"][masked]
        columns = {name: batch[name] for name in COLUMNS} | {"input_ids": ids}
        hidden = bert.bert(**columns).last_hidden_state
        there = batch["attention_mask"].unsqueeze(2)
        mean: Tensor = (hidden * there).sum(dim=1) / there.sum(dim=1)
        return mean
