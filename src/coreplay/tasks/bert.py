"""BERT models of any size, from a random start, a local folder or a Hub name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from coreplay.errors import InputError
from coreplay.files import may_be_on_hub
from coreplay.tasks.base import seeded

SUPPORTED = ("bert",)  # types of models, as transformers calls them
OF_NEW_MODELS = ("layers", "hidden", "heads", "feed_forward", "dropout", "vocabulary_size", "vocabulary_text")


@dataclass(frozen=True)
class Size:
    """The size of a BERT model; by default TinyBERT's (the paper's L = 4, H = 312, A = 12, feed-forward 1200)."""

    layers: int = 4
    hidden: int = 312
    heads: int = 12
    feed_forward: int = 1200
    longest: int = 64
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "feed_forward"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1: got {getattr(self, name)}")
        if self.hidden % self.heads:
            raise InputError(f"hidden must be a multiple of heads: got {self.hidden} and {self.heads}")
        if self.longest < 3:
            raise InputError(f"longest must leave room for a piece between the two ends: got {self.longest}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be at least 0 and below 1: got {self.dropout}")

    @classmethod
    def of(cls, **given: Any) -> "Size":
        """Return the size with these values, and the default where one is None."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    def config(self, words: int, **more: Any) -> Any:
        """Return transformers' configuration of this size."""
        from transformers import BertConfig

        return BertConfig(
            vocab_size=words,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
            max_position_embeddings=self.longest,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            **more,
        )


def fresh(kind: Any, config: Any, seed: int) -> nn.Module:
    """Return a model with the random start that belongs to the seed."""
    with seeded(seed):
        model: nn.Module = kind(config)
    return model


def check_start(start: str, **of_new_models: Any) -> None:
    """Raise an `InputError` if `start` is no BERT, or if options of a new model are given beside it."""
    for name, value in of_new_models.items():
        if value is not None:
            raise InputError(
                f"{name} = {value!r} has no effect beside start = {start!r}, whose model has its own: leave out one of "
                "the two"
            )
    if not Path(start).exists() and not may_be_on_hub(start):
        raise InputError(f"start {start!r}: there is no such folder")
    with _explained(start):
        _config(start)


def pretrained(kind: Any, start: str, words: int, seed: int, **more: Any) -> Any:
    """Load a model from a folder or by its Hub name; it must be a BERT that knows `words` words.

    Code that lies beside it is never run.
    """
    with _explained(start), seeded(seed), _without_bar():
        model = kind.from_pretrained(start, config=_config(start, **more), trust_remote_code=False)
    if model.config.vocab_size < words:
        raise InputError(
            f"start {start!r} knows {model.config.vocab_size} words, the vocabulary has {words}: use the model's own"
        )
    return model


def _config(start: str, **more: Any) -> Any:
    """Read the configuration of a model, which must be of a supported type."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(start, trust_remote_code=False, **more)
    if config.model_type not in SUPPORTED:
        raise InputError(
            f"start {start!r} is a model of type {config.model_type!r}, which is not supported (supported: "
            f"{', '.join(SUPPORTED)}): use a BERT model, or write a task of your own"
        )
    return config


@contextmanager
def _explained(start: str) -> Iterator[None]:
    """Say in one line why a model can't be loaded."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        what = "folder" if Path(start).exists() else "Hub name (is there a network?)"
        reason = str(error).partition("\n")[0]
        raise InputError(f"start {start!r} can't be loaded from this {what}: {reason}") from None


@contextmanager
def _without_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar, which every worker process would draw over what a run shows."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
