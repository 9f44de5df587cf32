"""Masked language modelling: guess the hidden pieces of a sentence. The paper's task, with TinyBERT by default.

The loss of a sample is the sum over its masked pieces of −log p(piece); perplexity = exp(Σ losses / number of masked
pieces). Logits, and the last layer, are computed at the masked positions only: the decoder is half of a small model's
work, and elsewhere nobody looks at them.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from coreplay.tasks.api import task
from coreplay.tasks.base import Batch, Task
from coreplay.tasks.bert import Size, fresh, pretrained
from coreplay.tasks.encoder import hidden_at
from coreplay.tasks.masking import EVALUATION, IGNORED, mask
from coreplay.tasks.metrics import Metric, exponential
from coreplay.tasks.vocabulary import Vocabulary


class MaskedLM(Task):
    """The task; `masked_lm` makes it for a stream."""

    metric = Metric("perplexity", lower_is_better=True, finish=exponential, compared_by_ratio=True)
    batch_first = True

    def __init__(self, vocabulary: Vocabulary, size: Size, share: float, start: str | None) -> None:
        if not 0 < share < 1:
            raise InputError(f"share, of the pieces that are masked, must be between 0 and 1: got {share}")
        self.vocabulary, self.size, self.share, self.start = vocabulary, size, share, start

    def model(self, seed: int) -> nn.Module:
        """Return a BERT with a masked-language head."""
        from transformers import BertForMaskedLM

        if self.start is None:
            pad = {"pad_token_id": self.vocabulary.pad}
            return fresh(BertForMaskedLM, self.size.config(len(self.vocabulary), **pad), seed)
        model: nn.Module = pretrained(BertForMaskedLM, self.start, len(self.vocabulary), seed, is_decoder=False)
        return model

    def files(self) -> dict[str, str]:
        """Return the vocabulary."""
        return {"vocabulary": self.vocabulary.tokenizer.to_str()}

    def lengths(self, samples: Samples) -> NDArray[np.int64]:
        """Return the number of pieces of each sample."""
        return self.vocabulary.lengths(samples.texts, self.size.longest)

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Encode and mask: by (view, sample) in training, always the same in evaluation."""
        words = self.vocabulary
        ids, there = words.encode(samples.texts, self.size.longest)
        inner = there & (ids != words.cls) & (ids != words.sep)
        masked = mask(
            ids,
            inner,
            samples.ids,
            view=EVALUATION if view is None else view,
            share=self.share,
            mask_id=words.mask,
            words=range(words.mask + 1, len(words)),
        )
        # explicit positions and types: broadcast ones would lose the gradients of single samples
        places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
        arrays = {
            "input_ids": masked.ids,
            "attention_mask": there.astype(np.int64),
            "position_ids": places,
            "token_type_ids": np.zeros_like(ids),
            "positions": masked.positions,
            "targets": masked.targets,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def per_sample_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the sum of −log p over the masked pieces of each sample."""
        bert: Any = model
        targets = batch["targets"]
        logits = bert.cls(hidden_at(bert.bert, batch, batch["positions"]))
        losses = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
        )
        return losses.view(targets.shape).sum(dim=1)

    def weights(self, batch: Any) -> Tensor:
        """Return the number of masked pieces of each sample."""
        targets: Tensor = batch["targets"]
        return (targets != IGNORED).sum(dim=1).float()

    def largest_weight(self) -> float:
        """Return how many pieces of the longest sample are masked."""
        return max(1.0, math.floor(self.share * self.size.longest + 0.5))


@task("masked_lm")
def masked_lm(
    stream: FederatedStream,
    *,
    vocabulary: str | Path | None = None,
    vocabulary_size: int = 8192,
    vocabulary_text: str | Path | None = None,
    start: str | None = None,
    share: float = 0.15,
    layers: int = 4,
    hidden: int = 312,
    heads: int = 12,
    feed_forward: int = 1200,
    longest: int = 64,
    dropout: float = 0.1,
) -> MaskedLM:
    """Guess masked pieces of sentences (perplexity); TinyBERT by default.

    Parameters
    ----------
    vocabulary
        A vocab.txt, tokenizer.json, model folder or Hub name. By default that of `start`, or else a WordPiece
        vocabulary of `vocabulary_size` trained on the first period's training texts, or on the lines of the file
        `vocabulary_text`.
    start
        A local folder or a Hub name with a BERT; by default a random start of the sizes that follow.
    share
        Of the pieces of a sentence that are masked, at least one.
    longest
        Pieces of a sentence that are used.
    """
    if vocabulary is not None or start is not None:
        words = Vocabulary.loaded(vocabulary if vocabulary is not None else str(start))
    elif vocabulary_text is not None:
        try:
            words = Vocabulary.trained(Path(vocabulary_text).read_text(encoding="utf-8").split("\n"), vocabulary_size)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"vocabulary_text {str(vocabulary_text)!r} can't be read: {error}") from None
    else:
        first = int(np.flatnonzero(stream.counts("train").sum(axis=0))[0])
        words = Vocabulary.trained(stream.of_period(first).texts, vocabulary_size)
    return MaskedLM(words, Size(layers, hidden, heads, feed_forward, longest, dropout), share, start)
