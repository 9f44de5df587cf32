"""What the tasks on texts share: BERT models, new or pretrained, their vocabulary and batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from coreplay.data import FederatedStream, Samples
from coreplay.data.sources.huggingface import may_be_on_hub
from coreplay.errors import InputError
from coreplay.files import read_text
from coreplay.tasks.base import Batch, Task, seeded
from coreplay.tasks.tokenization import PIECES, Vocabulary
from coreplay.validation import Count

COLUMNS = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
TINYBERT = {"num_layers": 4, "hidden_size": 312, "num_heads": 12, "intermediate_size": 1200, "dropout": 0.1}
OF_NEW_MODELS = (*TINYBERT, "vocabulary_size", "vocabulary_text")


class TextTask(Task):
    """A task on texts with a BERT model; by default TinyBERT, as in the paper.

    Options of a new model and of a vocabulary that is trained can't be given together with `pretrained`.

    Parameters
    ----------
    stream
        Texts.
    vocabulary
        A vocab.txt, tokenizer.json, model folder or Hub name; by default that of `pretrained`, or one that is trained.
    vocabulary_size
        The number of pieces of a vocabulary that is trained; 8192 by default.
    vocabulary_text
        A file whose lines the vocabulary is trained on; by default the first period's training texts.
    pretrained
        A local folder or a Hub name with a BERT model to start from; by default a random initialization.
    num_layers
        The number of layers of a new model; 4 by default.
    hidden_size
        The length of the hidden states of a new model; 312 by default.
    num_heads
        The number of attention heads of a new model; 12 by default.
    intermediate_size
        The width of the feed-forward part of a new model; 1200 by default.
    max_length
        The largest number of pieces of a sentence; the rest is cut off.
    dropout
        The dropout probability of a new model; 0.1 by default.
    """

    batch_first = True

    def __init__(
        self,
        stream: FederatedStream | None,
        *,
        vocabulary: Vocabulary | str | Path | None = None,
        vocabulary_size: int | None = None,
        vocabulary_text: str | Path | None = None,
        pretrained: str | None = None,
        num_layers: Count | None = None,
        hidden_size: Count | None = None,
        num_heads: Count | None = None,
        intermediate_size: Count | None = None,
        max_length: Annotated[int, Field(ge=3)] = 64,
        dropout: Annotated[float, Field(ge=0, lt=1)] | None = None,
    ) -> None:
        self.pretrained, self.max_length = pretrained, max_length
        sizes = (num_layers, hidden_size, num_heads, intermediate_size, dropout)
        given: dict[str, Any] = {
            name: value
            for name, value in zip(OF_NEW_MODELS, (*sizes, vocabulary_size, vocabulary_text), strict=True)
            if value is not None
        }
        if pretrained is not None:
            _check(pretrained, given)
        self.sizes: dict[str, Any] = {name: given.get(name, default) for name, default in TINYBERT.items()}
        wide, heads = self.sizes["hidden_size"], self.sizes["num_heads"]
        if wide % heads:
            raise InputError(f"hidden_size must be a multiple of num_heads: got {wide} and {heads}")
        if isinstance(vocabulary, Vocabulary):
            self.vocabulary = vocabulary
        elif vocabulary is not None:
            self.vocabulary = Vocabulary.loaded(vocabulary)
        elif pretrained is not None:
            self.vocabulary = Vocabulary.loaded(pretrained, "pretrained")
        else:
            if vocabulary_text is not None:
                texts = read_text(vocabulary_text, "text", "vocabulary_text").split("\n")
            else:
                assert stream is not None, "a vocabulary is trained on a stream"
                texts = stream.of_period(int(np.flatnonzero(stream.counts("train").sum(axis=0))[0])).texts
            self.vocabulary = Vocabulary.trained(texts, given.get("vocabulary_size", PIECES))

    def bert(self, kind: Any, seed: int, **more: Any) -> nn.Module:
        """Return a model of this kind, new or pretrained; new parts have the random start of the seed."""
        from transformers import BertConfig

        words = len(self.vocabulary)
        if self.pretrained is not None:
            return load_pretrained(kind, self.pretrained, words, seed, **more)
        config = BertConfig(
            vocab_size=words,
            hidden_size=self.sizes["hidden_size"],
            num_hidden_layers=self.sizes["num_layers"],
            num_attention_heads=self.sizes["num_heads"],
            intermediate_size=self.sizes["intermediate_size"],
            max_position_embeddings=self.max_length,
            hidden_dropout_prob=self.sizes["dropout"],
            attention_probs_dropout_prob=self.sizes["dropout"],
            pad_token_id=self.vocabulary.pad,
            **more,
        )
        with seeded(seed):
            model: nn.Module = kind(config)
        return model

    def shared_artifacts(self) -> dict[str, str]:
        """Return the vocabulary."""
        return {"vocabulary": self.vocabulary.tokenizer.to_str()}

    def lengths(self, samples: Samples) -> NDArray[np.int64]:
        """Return the number of pieces of each sample."""
        return self.vocabulary.lengths(samples.texts, self.max_length)

    def encode(self, samples: Samples) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the numbers of the pieces, padded, and where there are pieces."""
        return self.vocabulary.encode(samples.texts, self.max_length)

    def columns(self, ids: NDArray[np.int64], there: NDArray[np.bool_]) -> Batch:
        """Return the columns that BERT reads."""
        # explicit positions and types: broadcast ones would lose the gradients of single samples
        places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
        arrays = (ids, there.astype(np.int64), places, np.zeros_like(ids))
        return {name: torch.from_numpy(array) for name, array in zip(COLUMNS, arrays, strict=True)}


def _check(pretrained: str, of_new_models: dict[str, Any]) -> None:
    """Raise an `InputError` if `pretrained` is no BERT, or if options of a new model are given with it."""
    for name, value in of_new_models.items():
        what = f"{name} = {value!r} has no effect with pretrained = {pretrained!r}"
        raise InputError(f"{what}: leave one of the two out")
    if not Path(pretrained).exists() and not may_be_on_hub(pretrained):
        raise InputError(f"pretrained {pretrained!r}: there is no such folder")
    with _loading(pretrained):
        _config(pretrained)


def load_pretrained(kind: Any, start: str, words: int, seed: int, **more: Any) -> nn.Module:
    """Load a BERT that knows `words` words from a folder or by its Hub name; code in the folder is never run."""
    with _loading(start), seeded(seed):
        model: Any = kind.from_pretrained(start, config=_config(start, **more), trust_remote_code=False)
    known = model.config.vocab_size
    if known < words:
        raise InputError(f"pretrained {start!r} knows {known} words, the vocabulary has {words}: use its own")
    return model  # type: ignore[no-any-return]


def _config(start: str, **more: Any) -> Any:
    """Read the configuration of a model, which must be a BERT."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(start, trust_remote_code=False, **more)
    if config.model_type != "bert":
        problem = f"pretrained {start!r} is a model of type {config.model_type!r}, which is not supported"
        raise InputError(f"{problem} (supported: bert): use a BERT model, or write a task of your own")
    return config


@contextmanager
def _loading(start: str) -> Iterator[None]:
    """Say in one line why a model can't be loaded; hide progress bars, which every worker process would draw."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        what = "folder" if Path(start).exists() else "Hub name (is there a network?)"
        reason = str(error).partition("\n")[0]
        raise InputError(f"pretrained {start!r} can't be loaded from this {what}: {reason}") from None
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def hidden_at(bert: Any, batch: Any, positions: Tensor) -> Tensor:
    """Return the last hidden states of transformers' `BertModel` at `positions` (n, k) only: (n, k, hidden size).

    At other positions the last layer computes keys and values alone. Values and gradients are the same as without it.
    """
    hidden: Tensor = bert.embeddings(**{name: batch[name] for name in COLUMNS if name != "attention_mask"})
    there = batch["attention_mask"].bool()
    seen = None if bool(there.all()) else there[:, None, None, :]
    *layers, last = bert.encoder.layer
    for layer in layers:
        hidden = _layer(layer, hidden, hidden, seen)
    return _layer(last, hidden.gather(1, positions.unsqueeze(2).expand(-1, -1, hidden.shape[2])), hidden, seen)


def _layer(layer: Any, queried: Tensor, hidden: Tensor, seen: Tensor | None) -> Tensor:
    """Apply a layer at the positions `queried`, which attend to all of `hidden` that is `seen`."""
    attention = layer.attention.self
    heads = (attention.num_attention_heads, attention.attention_head_size)
    query, key, value = (
        linear(states).unflatten(-1, heads).transpose(1, 2)
        for linear, states in ((attention.query, queried), (attention.key, hidden), (attention.value, hidden))
    )
    dropout = attention.dropout.p if attention.training else 0.0
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout)
    attended = layer.attention.output(mixed.transpose(1, 2).flatten(2), queried)
    result: Tensor = layer.output(layer.intermediate(attended), attended)
    return result
