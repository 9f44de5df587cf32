"""The words of a language model: trained, or read from a file, a model folder or the Hub; texts to numbers."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from coreplay.errors import InputError
from coreplay.files import may_be_on_hub, write_text
from coreplay.tasks import wordpiece

Ints = NDArray[np.int64]

PIECES = 8192  # of a vocabulary that is trained, unless asked otherwise
REMEMBERED = 50_000  # texts whose numbers are kept


class Vocabulary:
    """A tokeniser with BERT's special pieces.

    >>> words = Vocabulary.trained(["turn on the light", "turn off the light"] * 2, size=60)
    >>> ids, mask = words.encode(["turn the light on", "off"], max_length=16)
    >>> ids.shape, mask.sum(axis=1).tolist(), words.decode(ids[1])
    ((2, 6), [6, 3], '[CLS] off [SEP]')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._remembered: dict[str, NDArray[np.int32]] = {}
        tokenizer.no_padding()
        tokenizer.no_truncation()
        numbers = tokenizer.get_vocab()
        missing = [piece for piece in wordpiece.SPECIAL if piece not in numbers]
        if missing:
            raise InputError(f"the tokeniser lacks {', '.join(missing)}: use one of a BERT model")
        self.pad, self.unknown, self.cls, self.sep, self.mask = (numbers[piece] for piece in wordpiece.SPECIAL)

    @classmethod
    def trained(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """Learn from texts; the same texts give the same vocabulary in every process."""
        return cls(wordpiece.tokenizer(wordpiece.train(texts, size)))

    @classmethod
    def loaded(cls, path: Path | str, option: str = "vocabulary") -> "Vocabulary":
        """Read a vocab.txt, a tokenizer.json, or a model folder with one of them; else ask the Hub for the name.

        Errors name the option that the path comes from.
        """
        place = Path(path)
        found = [place] if place.is_file() else [place / "tokenizer.json", place / "vocab.txt"]
        for file in found:
            if file.is_file():
                return cls(_read(file, option))
        if place.is_dir():
            raise InputError(f"{option} {str(place)!r}: the folder has neither tokenizer.json nor vocab.txt")
        if not may_be_on_hub(path):
            raise InputError(f"{option} {str(path)!r}: there is no such file or folder")
        try:
            tokenizer = Tokenizer.from_pretrained(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise InputError(f"{option} {str(path)!r} is no file, no folder, and not on the Hub: {error}") from None
        return cls(tokenizer)

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @property
    def pieces(self) -> list[str]:
        """All pieces in the order of their numbers."""
        numbers = self.tokenizer.get_vocab()
        return sorted(numbers, key=lambda piece: numbers[piece])

    def save(self, folder: Path | str) -> None:
        """Write vocab.txt and tokenizer.json into a folder."""
        write_text(Path(folder) / "vocab.txt", "".join(piece + "\n" for piece in self.pieces))
        write_text(Path(folder) / "tokenizer.json", self.tokenizer.to_str())

    def lengths(self, texts: list[str], max_length: int) -> Ints:
        """Return the number of pieces of each text, with the two at the ends, at most `longest`."""
        return np.array([min(len(ids), max_length) for ids in self._ids(texts)], dtype=np.int64)

    def encode(self, texts: list[str], max_length: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the numbers, padded to the longest of these texts, and where there is text."""
        rows = [
            ids if len(ids) <= max_length else np.append(ids[: max_length - 1], self.sep) for ids in self._ids(texts)
        ]
        lengths = np.array([len(ids) for ids in rows], dtype=np.int64)
        there = np.arange(lengths.max(initial=0)) < lengths[:, None]
        numbers = np.full(there.shape, self.pad, dtype=np.int64)
        if rows:
            numbers[there] = np.concatenate(rows)
        return numbers, there

    def _ids(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """Return the numbers of each text; those of texts seen lately are remembered, since training repeats them."""
        fresh = [text for text in dict.fromkeys(texts) if text not in self._remembered]
        if fresh and len(self._remembered) + len(fresh) > REMEMBERED:
            self._remembered.clear()
            fresh = list(dict.fromkeys(texts))
        if fresh:
            found = self.tokenizer.encode_batch(fresh)
            self._remembered |= {t: np.array(one.ids, dtype=np.int32) for t, one in zip(fresh, found, strict=True)}
        return [self._remembered[text] for text in texts]

    def decode(self, ids: Ints) -> str:
        """Return the pieces of a row, without padding."""
        return " ".join(self.tokenizer.id_to_token(int(k)) or "?" for k in ids if k != self.pad)


def _read(file: Path, option: str) -> Tokenizer:
    try:
        if file.suffix == ".json":
            return Tokenizer.from_file(str(file))
        return wordpiece.tokenizer(file.read_text(encoding="utf-8").split("\n")[:-1])
    except InputError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise InputError(f"{option} {str(file)!r} can't be read: {error}") from None
