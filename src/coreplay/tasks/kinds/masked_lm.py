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
from coreplay.files import read_text
from coreplay.tasks.api import task
from coreplay.tasks.base import Batch, Task
from coreplay.tasks.bert import Size, check_start, fresh, load_pretrained
from coreplay.tasks.encoder import hidden_at
from coreplay.tasks.masking import EVALUATION, IGNORED, mask
from coreplay.tasks.metrics import Metric, exponential
from coreplay.tasks.vocabulary import PIECES, Vocabulary


class MaskedLM(Task):
    """The task; `masked_lm` makes it for a stream."""

    metric = Metric("perplexity", lower_is_better=True, finish=exponential, compared_by_ratio=True)
    batch_first = True

    def __init__(self, vocabulary: Vocabulary, size: Size, mask_probability: float, pretrained: str | None) -> None:
        if not 0 < mask_probability < 1:
            raise InputError(f"mask_probability must be between 0 and 1: got {mask_probability}")
        self.vocabulary, self.size = vocabulary, size
        self.mask_probability, self.pretrained = mask_probability, pretrained

    def model(self, seed: int) -> nn.Module:
        """Return a BERT with a masked-language head."""
        from transformers import BertForMaskedLM

        if self.pretrained is None:
            pad = {"pad_token_id": self.vocabulary.pad}
            return fresh(BertForMaskedLM, self.size.config(len(self.vocabulary), **pad), seed)
        model: nn.Module = load_pretrained(
            BertForMaskedLM, self.pretrained, len(self.vocabulary), seed, is_decoder=False
        )
        return model

    def files(self) -> dict[str, str]:
        """Return the vocabulary."""
        return {"vocabulary": self.vocabulary.tokenizer.to_str()}

    def lengths(self, samples: Samples) -> NDArray[np.int64]:
        """Return the number of pieces of each sample."""
        return self.vocabulary.lengths(samples.texts, self.size.max_length)

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Encode and mask: by (view, sample) in training, always the same in evaluation."""
        words = self.vocabulary
        ids, there = words.encode(samples.texts, self.size.max_length)
        inner = there & (ids != words.cls) & (ids != words.sep)
        masked = mask(
            ids,
            inner,
            samples.ids,
            view=EVALUATION if view is None else view,
            share=self.mask_probability,
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

    def features(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean of the last hidden states over the pieces of each sentence, none of them masked."""
        bert: Any = model
        targets, places = batch["targets"], batch["positions"]
        ids = batch["input_ids"].clone()
        rows = torch.arange(len(ids)).unsqueeze(1).expand_as(places)
        asked = targets != IGNORED
        ids[rows[asked], places[asked]] = targets[asked]
        names = ("attention_mask", "position_ids", "token_type_ids")
        hidden = bert.bert(input_ids=ids, **{name: batch[name] for name in names}).last_hidden_state
        there = batch["attention_mask"].unsqueeze(2)
        mean: Tensor = (hidden * there).sum(dim=1) / there.sum(dim=1)
        return mean

    def largest_weight(self) -> float:
        """Return how many pieces of the longest sample are masked."""
        return max(1.0, math.floor(self.mask_probability * self.size.max_length + 0.5))


@task("masked_lm")
def masked_lm(
    stream: FederatedStream,
    *,
    vocabulary: str | Path | None = None,
    vocabulary_size: int | None = None,
    vocabulary_text: str | Path | None = None,
    pretrained: str | None = None,
    mask_probability: float = 0.15,
    num_layers: int | None = None,
    hidden_size: int | None = None,
    num_heads: int | None = None,
    intermediate_size: int | None = None,
    max_length: int = 64,
    dropout: float | None = None,
) -> MaskedLM:
    """Guess masked pieces of sentences (perplexity); TinyBERT by default.

    Options of a new model can't be given together with `pretrained`.

    Parameters
    ----------
    stream
        Texts.
    vocabulary
        A vocab.txt, tokenizer.json, model folder or Hub name. By default that of `pretrained`, or else a WordPiece
        vocabulary that is trained.
    vocabulary_size
        Pieces of a vocabulary that is trained; 8192 by default.
    vocabulary_text
        A file whose lines the vocabulary is trained on; by default the first period's training texts.
    pretrained
        A local folder or a Hub name with a BERT model to start from; by default a random initialization.
    mask_probability
        The fraction of the pieces of a sentence that are masked, at least one piece.
    num_layers
        Layers of a new model; 4 by default.
    hidden_size
        Length of the hidden states of a new model; 312 by default.
    num_heads
        Attention heads of a new model; 12 by default.
    intermediate_size
        Length of the feed-forward part of a new model; 1200 by default.
    max_length
        The largest number of pieces of a sentence; the rest is cut off.
    dropout
        Dropout of a new model; 0.1 by default.
    """
    sizes = {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "intermediate_size": intermediate_size,
        "dropout": dropout,
    }
    if pretrained is not None:
        check_start(pretrained, **sizes, vocabulary_size=vocabulary_size, vocabulary_text=vocabulary_text)
    pieces = PIECES if vocabulary_size is None else vocabulary_size
    if vocabulary is not None:
        words = Vocabulary.loaded(vocabulary)
    elif pretrained is not None:
        words = Vocabulary.loaded(pretrained, "pretrained")
    elif vocabulary_text is not None:
        words = Vocabulary.trained(read_text(vocabulary_text, "text", "vocabulary_text").split("\n"), pieces)
    else:
        first = int(np.flatnonzero(stream.counts("train").sum(axis=0))[0])
        words = Vocabulary.trained(stream.of_period(first).texts, pieces)
    return MaskedLM(words, Size.of(**sizes, max_length=max_length), mask_probability, pretrained)
