"""Streams made harder: what changes, and that nothing else does."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay import InputError
from coreplay.data import load

WORDS = {"num_clients": 6, "num_periods": 4, "samples": 20, "seed": 3}


def perturbed(**options):
    return load("perturbed", source="synthetic", options=WORDS, **options)


def rows(stream, split):
    return Counter(
        (client, period, text, time)
        for client, period, samples in stream.cells(split)
        for text, time in zip(samples.texts, samples.timestamp.tolist(), strict=True)
    )


def test_nothing_asked_changes_nothing():
    assert rows(perturbed(), "train") == rows(load("synthetic", **WORDS), "train")


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_test_samples_clients_and_times_stay(period, burst, noise, seed):
    plain, hard = load("synthetic", **WORDS), perturbed(large_period=period, burst=burst, noise=noise, seed=seed)
    assert rows(hard, "test") == rows(plain, "test")
    assert hard.clients == plain.clients
    assert hard.label_names == plain.label_names
    assert not Counter(k[:2] + k[3:] for k in rows(hard, "train")) - Counter(
        k[:2] + k[3:] for k in rows(plain, "train")
    )
    assert len(np.unique(hard.ids)) == len(hard)


def test_one_period_is_ten_times_as_large():
    plain, hard = load("synthetic", **WORDS).counts("train"), perturbed(large_period=2).counts("train")
    assert (hard[:, 2] == plain[:, 2]).all()
    others = [0, 1, 3]
    assert (hard[:, others] == np.ceil(plain[:, others] / 10)).all()
    assert (perturbed(large_period=2, times=3).counts("train")[:, others] == np.ceil(plain[:, others] / 3)).all()


def test_bursts_repeat_one_sample_of_a_client_and_period():
    hard, plain = perturbed(burst=0.6), load("synthetic", **WORDS)
    for client, period, samples in hard.cells():
        before = plain.samples(client, period)
        copies = max(Counter(samples.texts).values())
        assert copies >= round(0.6 * len(samples))
        assert set(samples.texts) <= set(before.texts)
        labels = dict(zip(before.texts, before.labels, strict=True))
        assert all(labels[text] == label for text, label in zip(samples.texts, samples.labels, strict=True))


def test_noise_gives_random_words_or_other_labels():
    plain, hard = load("synthetic", **WORDS), perturbed(noise=0.15)
    before, after = (stream.all().texts for stream in (plain, hard))
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    train = int((~plain.test).sum())
    assert 0.08 * train < len(changed) < 0.22 * train
    assert all(len(a.split()) == len(b.split()) for a, b in changed)
    assert {word for text in after for word in text.split()} <= {word for text in before for word in text.split()}

    images = load("digits", num_clients=4)
    noisy = load("perturbed", source="digits", options={"num_clients": 4}, noise=0.15)
    assert (noisy.content == images.content).all()
    different = noisy.label != images.label
    assert not different[images.test].any()
    assert 0.1 < different[~images.test].mean() < 0.2


def test_bad_options_are_refused():
    with pytest.raises(InputError, match="large_period must be 0 to 3: got 4"):
        perturbed(large_period=4)
    with pytest.raises(InputError, match="noise"):
        perturbed(noise=1.5)
    with pytest.raises(InputError, match=r"unknown source 'syntetic'.*synthetic"):
        load("perturbed", source="syntetic")
    with pytest.raises(InputError, match="num_client"):
        load("perturbed", source="synthetic", options={"num_client": 3})
