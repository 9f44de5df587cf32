"""Text classification: which label (intent) a sentence has, by a small BERT encoder."""

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
from coreplay.tasks.bert import Size, check_start, fresh, load_pretrained
from coreplay.tasks.kinds.image_classification import known_labels
from coreplay.tasks.metrics import Metric
from coreplay.tasks.vocabulary import PIECES, Vocabulary


class TextClassification(Task):
    """The task; `text_classification` makes it for a stream."""

    metric = Metric("accuracy", lower_is_better=False)
    batch_first = True

    def __init__(self, vocabulary: Vocabulary, classes: int, size: Size, pretrained: str | None) -> None:
        self.vocabulary, self.classes, self.size, self.pretrained = vocabulary, classes, size, pretrained

    def model(self, seed: int) -> nn.Module:
        """Return a BERT with a classification head."""
        from transformers import BertForSequenceClassification

        words, labels = len(self.vocabulary), {"num_labels": self.classes}
        if self.pretrained is None:
            config = self.size.config(words, pad_token_id=self.vocabulary.pad, **labels)
            return fresh(BertForSequenceClassification, config, seed)
        model: nn.Module = load_pretrained(BertForSequenceClassification, self.pretrained, words, seed, **labels)
        return model

    def files(self) -> dict[str, str]:
        """Return the vocabulary."""
        return {"vocabulary": self.vocabulary.tokenizer.to_str()}

    def lengths(self, samples: Samples) -> NDArray[np.int64]:
        """Return the number of pieces of each sample."""
        return self.vocabulary.lengths(samples.texts, self.size.max_length)

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Encode texts and labels."""
        labels = known_labels(samples)
        ids, there = self.vocabulary.encode(samples.texts, self.size.max_length)
        arrays = {
            "input_ids": ids,
            "attention_mask": there.astype(np.int64),
            "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy(),
            "token_type_ids": np.zeros_like(ids),
            "label": labels,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def per_sample_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return −log p of the right label."""
        return functional.cross_entropy(self._logits(model, batch), batch["label"], reduction="none")

    def scores(self, model: nn.Module, batch: Any) -> Tensor:
        """Return 1 where the label is right."""
        right: Tensor = self._logits(model, batch).argmax(dim=1) == batch["label"]
        return right.float()

    def features(self, model: nn.Module, batch: Any) -> Tensor:
        """Return what goes into the classification head."""
        bert: Any = model
        found: Tensor = bert.bert(**{name: value for name, value in batch.items() if name != "label"}).pooler_output
        return found

    def _logits(self, model: nn.Module, batch: Any) -> Tensor:
        logits: Tensor = model(**{name: value for name, value in batch.items() if name != "label"}).logits
        return logits


@task("text_classification")
def text_classification(
    stream: FederatedStream,
    *,
    vocabulary: str | Path | None = None,
    vocabulary_size: int | None = None,
    pretrained: str | None = None,
    num_layers: int | None = None,
    hidden_size: int | None = None,
    num_heads: int | None = None,
    intermediate_size: int | None = None,
    max_length: int = 64,
    dropout: float | None = None,
) -> TextClassification:
    """Find the label (intent) of a sentence (accuracy); TinyBERT by default."""
    if not stream.label_names:
        raise InputError("text_classification needs a stream with labels: name a column with columns={'label': ...}")
    sizes = {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "intermediate_size": intermediate_size,
        "dropout": dropout,
    }
    if pretrained is not None:
        check_start(pretrained, **sizes, vocabulary_size=vocabulary_size)
    if vocabulary is not None:
        words = Vocabulary.loaded(vocabulary)
    elif pretrained is not None:
        words = Vocabulary.loaded(pretrained, "pretrained")
    else:
        first = int(np.flatnonzero(stream.counts("train").sum(axis=0))[0])
        pieces = PIECES if vocabulary_size is None else vocabulary_size
        words = Vocabulary.trained(stream.of_period(first).texts, pieces)
    return TextClassification(words, len(stream.label_names), Size.of(**sizes, max_length=max_length), pretrained)
