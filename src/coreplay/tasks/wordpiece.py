"""A WordPiece vocabulary, learned so that the same texts give the same vocabulary in every process.

The trainers at hand number pieces in the order of a hash table, so ties between merges break differently from run to
run. Here pieces are compared as strings: of the pairs with the highest count, the first in alphabetical order is
merged. Nothing depends on the order of a set or a dictionary.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from coreplay.errors import InputError

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100  # characters; what WordPiece calls unknown at once
Pair = tuple[str, str]


def train(texts: Iterable[str], size: int, least: int = 2) -> list[str]:
    """Learn a vocabulary of at most `size` pieces: special ones, letters, then pairs that occur at least `least` times.

    >>> train(["low lower lowest", "new newer newest"], 25)[-3:]
    ['##st', '##wer', '##west']
    """
    if size <= len(SPECIAL):
        raise InputError(f"the vocabulary needs room for more than {len(SPECIAL)} special pieces: got {size}")
    counts = count_words(texts)
    words = [[word[0], *("##" + letter for letter in word[1:])] for word in sorted(counts)]
    often = [counts[word] for word in sorted(counts)]
    letters: Counter[str] = Counter()
    for pieces, n in zip(words, often, strict=True):
        for piece in pieces:
            letters[piece] += n
    room = size - len(SPECIAL)
    alphabet = sorted(sorted(letters), key=lambda piece: -letters[piece])[:room]
    vocabulary = [*SPECIAL, *sorted(alphabet)]
    return vocabulary + merged(words, often, room - len(alphabet), least)


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the words of texts, normalised and split as the tokeniser does it."""
    normalise, split = BertNormalizer(lowercase=True).normalize_str, BertPreTokenizer().pre_tokenize_str
    plain = Counter(word for text in texts for word in normalise(text).split())
    counts: Counter[str] = Counter()
    for word, n in plain.items():
        for piece, _ in split(word):
            if len(piece) <= LONGEST_WORD:
                counts[piece] += n
    return counts


def merged(words: list[list[str]], often: list[int], room: int, least: int) -> list[str]:
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
        if counts[pair] < least:
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
        if k + 1 < len(pieces) and (pieces[k], pieces[k + 1]) == pair:
            result.append(_name(pair))
            k += 2
        else:
            result.append(pieces[k])
            k += 1
    return result


def tokenizer(vocabulary: list[str]) -> Tokenizer:
    """Return the lower-casing BERT tokeniser with this vocabulary."""
    numbers = {piece: k for k, piece in enumerate(vocabulary)}
    missing = [piece for piece in SPECIAL if piece not in numbers]
    if missing:
        raise InputError(
            f"the vocabulary lacks {', '.join(missing)}: a BERT vocabulary has all of {', '.join(SPECIAL)}"
        )
    made = Tokenizer(WordPiece(numbers, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD))
    made.normalizer = BertNormalizer(lowercase=True)
    made.pre_tokenizer = BertPreTokenizer()
    ends = [(CLS, numbers[CLS]), (SEP, numbers[SEP])]
    made.post_processor = TemplateProcessing(single=f"{CLS} $A {SEP}", special_tokens=ends)
    return made
