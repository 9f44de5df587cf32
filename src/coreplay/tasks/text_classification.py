"""Text classification: which label (intent) a sentence has, by a small BERT encoder."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from coreplay.tasks.api import task
from coreplay.tasks.base import ACCURACY, Batch, is_right, known_labels
from coreplay.tasks.bert import TextTask


@task("text_classification")
class TextClassification(TextTask):
    """Find the label (intent) of a sentence (accuracy); TinyBERT by default."""

    metric = ACCURACY

    def __init__(self, stream: FederatedStream, **options: Any) -> None:
        if not stream.label_names:
            raise InputError(
                "text_classification needs a stream with labels: name a column with columns={'label': ...}"
            )
        super().__init__(stream, **options)
        self.classes = len(stream.label_names)

    def model(self, seed: int) -> nn.Module:
        """Return a BERT with a classification head."""
        from transformers import BertForSequenceClassification

        return self.bert(BertForSequenceClassification, seed, num_labels=self.classes)

    def collate(self, samples: Samples, view: int | None = None) -> Batch:
        """Encode texts and labels."""
        return self.encoded(samples)[0] | {"label": known_labels(samples)}

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the logits of the labels."""
        logits: Tensor = model(**{name: value for name, value in batch.items() if name != "label"}).logits
        return logits

    def losses(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return −log p of the right label."""
        return functional.cross_entropy(outputs, batch["label"], reduction="none")

    def metric_terms(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return 1 where the label is right."""
        return is_right(outputs, batch)

    def features(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the input of the classification head."""
        bert: Any = model
        found: Tensor = bert.bert(**{name: value for name, value in batch.items() if name != "label"}).pooler_output
        return found
