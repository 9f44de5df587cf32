"""Vocabularies: WordPiece, trained or loaded; texts to numbers.

The trainer of the library `tokenizers` breaks ties between merges at random (huggingface/tokenizers#1794). Here, of the
pairs with the highest count, the first in alphabetical order is merged: the same texts give the same vocabulary.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from coreplay.data.sources.huggingface import may_be_on_hub
from coreplay.errors import InputError
from coreplay.files import write_text

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100  # characters; WordPiece treats longer words as unknown
PIECES = 8192  # of a vocabulary that is trained, by default
CACHED = 50_000  # texts whose numbers are kept in memory
Ints = NDArray[np.int64]
Pair = tuple[str, str]


class Vocabulary:
    """A tokeniser with BERT's special pieces.

    >>> words = Vocabulary.trained(["turn on the light", "turn off the light"] * 2, size=60)
    >>> ids, mask = words.encode(["turn the light on", "off"], max_length=16)
    >>> ids.shape, mask.sum(axis=1).tolist(), [words.pieces[k] for k in ids[1, :3]]
    ((2, 6), [6, 3], ['[CLS]', 'off', '[SEP]'])
    """

    def __init__(self, made: Tokenizer) -> None:
        self.tokenizer = made
        self._cache: dict[str, NDArray[np.int32]] = {}
        made.no_padding()
        made.no_truncation()
        numbers = _with_special(made.get_vocab())
        self.pad, self.unknown, self.cls, self.sep, self.mask = (numbers[piece] for piece in SPECIAL)

    @classmethod
    def trained(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """Learn from texts; the same texts give the same vocabulary in every process."""
        return cls(tokenizer(train(texts, size)))

    @classmethod
    def loaded(cls, path: Path | str, option: str = "vocabulary") -> "Vocabulary":
        """Read a vocab.txt, a tokenizer.json, or a model folder with one; else ask the Hub. Errors name `option`."""
        place = Path(path)
        files = [place] if place.is_file() else [place / "tokenizer.json", place / "vocab.txt"]
        found = next((file for file in files if file.is_file()), None)
        if found is None and place.is_dir():
            raise InputError(f"{option} {str(place)!r}: the folder has neither tokenizer.json nor vocab.txt")
        if found is None and not may_be_on_hub(path):
            raise InputError(f"{option} {str(path)!r}: there is no such file or folder")
        try:
            if found is None:
                return cls(Tokenizer.from_pretrained(str(path)))
            if found.suffix == ".json":
                return cls(Tokenizer.from_file(str(found)))
            return cls(tokenizer(found.read_text(encoding="utf-8").split("\n")[:-1]))
        except InputError:
            raise
        except Exception as error:  # the library raises bare exceptions
            problem = "is no file, no folder, and not on the Hub" if found is None else "can't be read"
            raise InputError(f"{option} {str(found or path)!r} {problem}: {error}") from None

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
        """Return the number of pieces of each text, with the two at the ends, at most `max_length`."""
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
        """Return the numbers of each text; those of recent texts are cached, since training repeats them."""
        fresh = [text for text in dict.fromkeys(texts) if text not in self._cache]
        if fresh and len(self._cache) + len(fresh) > CACHED:
            self._cache.clear()
            fresh = list(dict.fromkeys(texts))
        if fresh:
            found = self.tokenizer.encode_batch(fresh)
            self._cache |= {t: np.array(one.ids, dtype=np.int32) for t, one in zip(fresh, found, strict=True)}
        return [self._cache[text] for text in texts]


def train(texts: Iterable[str], size: int, min_count: int = 2) -> list[str]:
    """Learn at most `size` pieces: special ones, characters, then pairs by their count, which is at least `min_count`.

    >>> train(["low lower lowest", "new newer newest"], 25)[-3:]
    ['##st', '##wer', '##west']
    """
    if size <= len(SPECIAL):
        raise InputError(f"the vocabulary needs room for more than {len(SPECIAL)} special pieces: got {size}")
    counts = _count_words(texts)
    words = [[word[0], *("##" + character for character in word[1:])] for word in sorted(counts)]
    often = [counts[word] for word in sorted(counts)]
    characters: Counter[str] = Counter()
    for pieces, n in zip(words, often, strict=True):
        characters.update({piece: n * pieces.count(piece) for piece in pieces})
    room = size - len(SPECIAL)
    alphabet = sorted(sorted(characters), key=lambda piece: -characters[piece])[:room]
    vocabulary = [*SPECIAL, *sorted(alphabet)]
    return vocabulary + _merged(words, often, room - len(alphabet), min_count)


def _count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the words of texts, normalised and split as the tokeniser does it."""
    normalise, split = BertNormalizer(lowercase=True).normalize_str, BertPreTokenizer().pre_tokenize_str
    plain = Counter(word for text in texts for word in normalise(text).split())
    counts: Counter[str] = Counter()
    for word, n in plain.items():
        for piece, _ in split(word):
            if len(piece) <= LONGEST_WORD:
                counts[piece] += n
    return counts


def _merged(words: list[list[str]], often: list[int], room: int, min_count: int) -> list[str]:
    """Merge the most frequent pair again and again; return the new pieces. Changes `words`."""
    counts: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    for k, pieces in enumerate(words):
        for pair in pairwise(pieces):
            counts[pair] += often[k]
            where[pair].add(k)
    queue = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(queue)
    new: dict[str, None] = {}
    while queue and len(new) < room:
        negative, pair = heapq.heappop(queue)
        if counts[pair] != -negative or not counts[pair]:
            continue  # an old entry: the count has changed since
        if counts[pair] < min_count:
            break
        changed: set[Pair] = set()
        for k in where.pop(pair):
            before = words[k]
            after = _joined(before, pair)
            for old in pairwise(before):
                counts[old] -= often[k]
                changed.add(old)
            for fresh in pairwise(after):
                counts[fresh] += often[k]
                where[fresh].add(k)
                changed.add(fresh)
            words[k] = after
        for other in changed:
            if counts[other] > 0:
                heapq.heappush(queue, (-counts[other], other))
        new[_name(pair)] = None
    return list(new)


def _name(pair: Pair) -> str:
    return pair[0] + pair[1].removeprefix("##")


def _joined(pieces: list[str], pair: Pair) -> list[str]:
    result: list[str] = []
    k = 0
    while k < len(pieces):
        found = tuple(pieces[k : k + 2]) == pair
        result.append(_name(pair) if found else pieces[k])
        k += 1 + found
    return result


def tokenizer(vocabulary: list[str]) -> Tokenizer:
    """Return the lower-casing BERT tokeniser with this vocabulary."""
    numbers = _with_special({piece: k for k, piece in enumerate(vocabulary)})
    made = Tokenizer(WordPiece(numbers, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD))
    made.normalizer = BertNormalizer(lowercase=True)
    made.pre_tokenizer = BertPreTokenizer()
    ends = [(CLS, numbers[CLS]), (SEP, numbers[SEP])]
    made.post_processor = TemplateProcessing(single=f"{CLS} $A {SEP}", special_tokens=ends)
    return made


def _with_special(numbers: dict[str, int]) -> dict[str, int]:
    """Return the numbers of pieces, which must have BERT's special pieces."""
    missing = ", ".join(piece for piece in SPECIAL if piece not in numbers)
    if missing:
        raise InputError(f"the vocabulary lacks {missing}: a BERT vocabulary has all of {', '.join(SPECIAL)}")
    return numbers
