"""Image classification: a small convolutional network for small images, such as scikit-learn's digits."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from coreplay.tasks.api import task
from coreplay.tasks.base import Batch, Task, seeded
from coreplay.tasks.metrics import Metric


class ImageClassification(Task):
    """The task; `image_classification` makes it for a stream."""

    metric = Metric("accuracy", lower_is_better=False)
    batch_first = True

    def __init__(self, shape: tuple[int, int], classes: int, channels: int) -> None:
        self.shape, self.classes, self.channels = shape, classes, channels

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
        return {"image": torch.from_numpy(images), "label": torch.from_numpy(known_labels(samples))}

    def per_sample_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return −log p of the right label."""
        return functional.cross_entropy(model(batch["image"]), batch["label"], reduction="none")

    def scores(self, model: nn.Module, batch: Any) -> Tensor:
        """Return 1 where the label is right."""
        right: Tensor = model(batch["image"]).argmax(dim=1) == batch["label"]
        return right.float()

    def features(self, model: nn.Module, batch: Any) -> Tensor:
        """Return what goes into the last layer."""
        layers: Any = model
        found: Tensor = layers[:-1](batch["image"])
        return found


def known_labels(samples: Samples) -> NDArray[np.int64]:
    """Return the labels as numbers, all of which must be known."""
    labels = np.ascontiguousarray(samples.label)
    if (labels < 0).any():
        raise InputError(f"{int((labels < 0).sum())} of {len(labels)} samples have no label: classification needs them")
    return labels.copy()


@task("image_classification")
def image_classification(stream: FederatedStream, *, channels: int = 16) -> ImageClassification:
    """Find the label of a small grey image (accuracy), by a small convolutional network."""
    if not isinstance(stream.content, np.ndarray) or stream.content.ndim != 3:
        raise InputError("image_classification needs a stream of grey images, (n, height, width): try source 'digits'")
    if channels < 1:
        raise InputError(f"channels must be at least 1: got {channels}")
    height, width = stream.content.shape[1:]
    return ImageClassification((height, width), len(stream.label_names), channels)
