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
OF_NEW_MODELS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "intermediate_size",
    "dropout",
    "vocabulary_size",
    "vocabulary_text",
)


@dataclass(frozen=True)
class Size:
    """The size of a BERT model; by default TinyBERT's (the paper's L = 4, H = 312, A = 12, feed-forward 1200)."""

    num_layers: int = 4
    hidden_size: int = 312
    num_heads: int = 12
    intermediate_size: int = 1200
    max_length: int = 64
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "intermediate_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1: got {getattr(self, name)}")
        if self.hidden_size % self.num_heads:
            raise InputError(
                f"hidden_size must be a multiple of num_heads: got {self.hidden_size} and {self.num_heads}"
            )
        if self.max_length < 3:
            raise InputError(f"max_length must leave room for a piece between the two ends: got {self.max_length}")
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
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_length,
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
    """Raise an `InputError` if `pretrained` is no BERT, or if options of a new model are given beside it."""
    for name, value in of_new_models.items():
        if value is not None:
            raise InputError(
                f"{name} = {value!r} has no effect with pretrained = {start!r}, whose model has its own: leave one out"
            )
    if not Path(start).exists() and not may_be_on_hub(start):
        raise InputError(f"pretrained {start!r}: there is no such folder")
    with _explained(start):
        _config(start)


def load_pretrained(kind: Any, start: str, words: int, seed: int, **more: Any) -> Any:
    """Load a model from a folder or by its Hub name; it must be a BERT that knows `words` words.

    Code that lies beside it is never run.
    """
    with _explained(start), seeded(seed), _without_bar():
        model = kind.from_pretrained(start, config=_config(start, **more), trust_remote_code=False)
    if model.config.vocab_size < words:
        raise InputError(
            f"pretrained {start!r} knows {model.config.vocab_size} words, the vocabulary has {words}: use its own"
        )
    return model


def _config(start: str, **more: Any) -> Any:
    """Read the configuration of a model, which must be of a supported type."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(start, trust_remote_code=False, **more)
    if config.model_type not in SUPPORTED:
        raise InputError(
            f"pretrained {start!r} is a model of type {config.model_type!r}, which is not supported (supported: "
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
        raise InputError(f"pretrained {start!r} can't be loaded from this {what}: {reason}") from None


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
