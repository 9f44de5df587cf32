"""The vocabulary: against a slow trainer, and the same in fresh processes."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreplay.errors import InputError
from coreplay.tasks.tokenization import SPECIAL, Vocabulary, train

TEXTS = st.lists(st.text("abcd '.-\u00e9", max_size=12), max_size=12)
SPEECH = ["turn on the kitchen light", "turn off the light in the hall", "play some jazz", "stop the music now"] * 2


def slowly(texts, size):
    """Merge the best pair of all, counted anew each time."""
    counts = Counter()
    for text in texts:
        plain = text.lower().replace("\u00e9", "e")
        for letter in "'.-":
            plain = plain.replace(letter, f" {letter} ")
        counts.update(plain.split())
    words = {word: [word[0], *("##" + letter for letter in word[1:])] for word in counts}
    letters = Counter()
    for word, pieces in words.items():
        for piece in pieces:
            letters[piece] += counts[word]
    alphabet = sorted(sorted(letters), key=lambda piece: -letters[piece])[: size - 5]
    new = []
    while len(new) < size - 5 - len(alphabet):
        pairs = Counter()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                pairs[pair] += counts[word]
        if not pairs or max(pairs.values()) < 2:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        name = best[0] + best[1][2:]
        for word, pieces in words.items():
            made, k = [], 0
            while k < len(pieces):
                both = tuple(pieces[k : k + 2]) == best
                made.append(name if both else pieces[k])
                k += 1 + both
            words[word] = made
        if name not in new:
            new.append(name)
    return [*SPECIAL, *sorted(alphabet), *new]


@given(TEXTS, st.integers(6, 40))
def test_training_is_the_plain_algorithm_with_ties_in_alphabetical_order(texts, size):
    assert train(texts, size) == slowly(texts, size)


@given(TEXTS, st.randoms())
def test_the_order_of_texts_does_not_matter(texts, random):
    shuffled = list(texts)
    random.shuffle(shuffled)
    assert train(texts, 30) == train(shuffled, 30)


def test_vocabulary_and_masks_are_the_same_in_fresh_processes(capsys):
    """Whatever the order of sets is: this process hashes texts in its own way, too."""
    script = (
        "import hashlib, torch\n"
        "from coreplay.data import load\n"
        "from coreplay.tasks import batches, make\n"
        "stream = load('synthetic', num_clients=6, num_periods=2)\n"
        "size = {'num_layers': 1, 'hidden_size': 24, 'num_heads': 2, 'intermediate_size': 24}\n"
        "task = make('masked_lm', stream, vocabulary_size=700, **size)\n"
        "found = hashlib.sha256(' '.join(task.vocabulary.pieces).encode())\n"
        "made = [*batches(task, stream.of_period(0), 8, seed=1, epoch=3), task.collate(stream.of_period(1, 'test'))]\n"
        "for batch in made:\n"
        "    for name, tensor in batch.items(): found.update(name.encode() + tensor.numpy().tobytes())\n"
        "for tensor in task.model(2).state_dict().values(): found.update(tensor.numpy().tobytes())\n"
        "print(len(task.vocabulary), found.hexdigest())"
    )
    shown = {
        subprocess.check_output([sys.executable, "-c", script], text=True, env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("0", "random")
    }
    exec(script, {})
    shown.add(capsys.readouterr().out)
    assert len(shown) == 1
    assert shown.pop().startswith("330 ")


def test_encoding_cuts_and_pads():
    words = Vocabulary.trained(SPEECH, 200)
    ids, there = words.encode(["play jazz", "", "turn on the light " * 9], max_length=10)
    assert ids.shape == (3, 10)
    assert there.sum(axis=1).tolist() == [len(words.tokenizer.encode("play jazz").ids), 2, 10]
    assert ids[2, 0] == words.cls
    assert ids[2, -1] == words.sep
    assert (ids[~there] == words.pad).all()
    assert words.lengths(["play jazz", "", "turn on the light " * 9], 10).tolist() == there.sum(axis=1).tolist()
    assert words.encode([], 10)[0].shape == (0, 0)
    assert words.unknown in words.encode(["日本"], 10)[0]


def test_a_vocabulary_comes_back_from_its_files(tmp_path):
    words = Vocabulary.trained(SPEECH, 120)
    words.save(tmp_path)
    for place in (tmp_path, tmp_path / "vocab.txt", tmp_path / "tokenizer.json"):
        again = Vocabulary.loaded(place)
        assert again.pieces == words.pieces
        np.testing.assert_array_equal(again.encode(SPEECH, 20)[0], words.encode(SPEECH, 20)[0])


def test_bad_vocabularies_are_named(tmp_path):
    with pytest.raises(InputError, match="special pieces: got 5"):
        train(SPEECH, 5)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match=r"lacks \[PAD\]"):
        Vocabulary.loaded(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json' can't be read"):
        Vocabulary.loaded(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"neither tokenizer\.json nor vocab\.txt"):
        Vocabulary.loaded(tmp_path / "empty")
