"""Image classification: a small convolutional network for small images, such as scikit-learn's digits."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from coreplay.tasks.api import task
from coreplay.tasks.base import ACCURACY, Batch, Task, is_right, known_labels, seeded


@task("image_classification")
class ImageClassification(Task):
    """Find the label of a small grey image (accuracy), by a small convolutional network."""

    metric = ACCURACY
    batch_first = True

    def __init__(self, stream: FederatedStream, *, channels: int = 16) -> None:
        if not isinstance(stream.content, np.ndarray) or stream.content.ndim != 3:
            raise InputError(
                "image_classification needs a stream of grey images, (n, height, width): try source 'digits'"
            )
        if channels < 1:
            raise InputError(f"channels must be at least 1: got {channels}")
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

    def losses(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return −log p of the right label."""
        return functional.cross_entropy(outputs, batch["label"], reduction="none")

    def metric_terms(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return 1 where the label is right."""
        return is_right(outputs, batch)

    def features(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the input of the last layer."""
        layers: Any = model
        found: Tensor = layers[:-1](batch["image"])
        return found
