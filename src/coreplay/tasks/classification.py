"""Classification of texts by a small BERT encoder, and of small images by a convolutional network."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from coreplay.tasks import task
from coreplay.tasks.base import ACCURACY, Batch, Task, is_right, seeded
from coreplay.tasks.bert import COLUMNS, TextTask
from coreplay.validation import Count


class Classification(Task):
    """A task whose outputs are the logits of the labels."""

    metric = ACCURACY
    batch_first = True

    def losses(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return −log p of the right label."""
        return functional.cross_entropy(outputs, batch["label"], reduction="none")

    def metric_terms(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return 1 where the label is right."""
        return is_right(outputs, batch)


def known_labels(samples: Samples) -> Tensor:
    """Return the numbers of the labels, all of which must be known."""
    missing = int((samples.label < 0).sum())
    if missing:
        raise InputError(f"{missing} of {len(samples)} samples have no label: classification needs them")
    return torch.tensor(samples.label)


@task("text_classification")
class TextClassification(TextTask, Classification):
    """Find the label (intent) of a sentence (accuracy); TinyBERT by default."""

    def __init__(self, stream: FederatedStream, **options: Any) -> None:
        if not stream.label_names:
            remedy = "name a column with columns={'label': ...}"
            raise InputError(f"text_classification needs a stream with labels: {remedy}")
        super().__init__(stream, **options)
        self.classes = len(stream.label_names)

    def model(self, seed: int) -> nn.Module:
        """Return a BERT with a classification head."""
        from transformers import BertForSequenceClassification

        return self.bert(BertForSequenceClassification, seed, num_labels=self.classes)

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Encode texts and labels."""
        return self.columns(*self.encode(samples)) | {"label": known_labels(samples)}

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the logits of the labels."""
        logits: Tensor = model(**{name: batch[name] for name in COLUMNS}).logits
        return logits

    def features(self, model: Any, batch: Any) -> Tensor:
        """Return the input of the classification head."""
        found: Tensor = model.bert(**{name: batch[name] for name in COLUMNS}).pooler_output
        return found


@task("image_classification")
class ImageClassification(Classification):
    """Find the label of a small grey image (accuracy), by a small convolutional network."""

    def __init__(self, stream: FederatedStream, *, channels: Count = 16) -> None:
        if not isinstance(stream.content, np.ndarray) or stream.content.ndim != 3:
            needed = "a stream of grey images, (n, height, width)"
            raise InputError(f"image_classification needs {needed}: try source 'digits'")
        self.shape, self.classes, self.channels = stream.content.shape[1:], len(stream.label_names), channels

    def model(self, seed: int) -> nn.Module:
        """Return two convolutions and a linear layer."""
        height, width = ((side + 1) // 2 for side in self.shape)
        with seeded(seed):
            return nn.Sequential(
                nn.Conv2d(1, self.channels, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(self.channels, 2 * self.channels, 3, padding=1, stride=2),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(2 * self.channels * height * width, self.classes),
            )

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Return the images with a channel, and their labels."""
        images = np.ascontiguousarray(samples.content, dtype=np.float32)[:, None]
        return {"image": torch.from_numpy(images), "label": known_labels(samples)}

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the logits of the labels."""
        logits: Tensor = model(batch["image"])
        return logits

    def features(self, model: Any, batch: Any) -> Tensor:
        """Return the input of the last layer."""
        found: Tensor = model[:-1](batch["image"])
        return found
