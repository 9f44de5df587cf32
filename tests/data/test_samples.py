"""Samples as columns: taking rows and joining runs, against lists of rows."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from tests.data.shared import samples


def rows(found):
    """Return samples as a list of tuples, one per sample."""
    contents = [c.tolist() for c in found.content] if isinstance(found.content, np.ndarray) else found.texts
    columns = [contents, found.ids, found.labels, found.timestamp, found.arrived, found.weight]
    extras = [found.extras[name] for name in sorted(found.extras)]
    return list(zip(*[[str(value) for value in column] for column in columns + extras], strict=True))


@given(samples(), st.data())
def test_rows_are_taken_from_every_column(found, data):
    which = data.draw(st.lists(st.integers(0, len(found) - 1), max_size=6) if len(found) else st.just([]))
    assert rows(found[which]) == [rows(found)[k] for k in which]
    part = slice(*data.draw(st.tuples(st.integers(-7, 7), st.integers(-7, 7))))
    assert rows(found[part]) == rows(found)[part]
    assert found[which].label_names == found.label_names
    assert {name: c.dtype for name, c in found[which].extras.items()} == {n: c.dtype for n, c in found.extras.items()}


@given(samples(), st.lists(st.integers(0, 6), max_size=3))
def test_parts_joined_are_the_whole(found, cuts):
    edges = [0, *sorted(min(cut, len(found)) for cut in cuts), len(found)]
    parts = [found[a:b] for a, b in itertools.pairwise(edges)]
    whole = Samples.joined(parts)
    assert rows(whole) == rows(found)
    assert {name: c.dtype for name, c in whole.extras.items()} == {n: c.dtype for n, c in found.extras.items()}


def two(**more):
    return Samples(pa.array(["hi", "stop"]), np.array([7, 8], dtype=np.uint64), np.array([-1, -1]), np.zeros(2), **more)


def test_missing_floats_are_nan_and_missing_integers_an_error():
    joined = Samples.joined([two(), two().with_columns(logits=np.ones((2, 3), dtype=np.float32))])
    assert joined.extras["logits"].dtype == np.float32
    assert np.isnan(joined.extras["logits"]).all(axis=1).tolist() == [True, True, False, False]
    integers = two().with_columns(view=np.arange(2))
    with pytest.raises(InputError, match="'view' of dtype int64 is missing in 2 samples"):
        Samples.joined([integers, two()])
    assert Samples.joined([integers, two()[:0]]).extras["view"].tolist() == [0, 1]
    for other in (np.ones((2, 4)), np.ones((2, 3), dtype=np.float32)):
        with pytest.raises(InputError, match="'logits' must have rows of one shape and dtype"):
            Samples.joined([two().with_columns(logits=np.ones((2, 3))), two().with_columns(logits=other)])


def test_defaults_and_replaced_columns():
    assert two().arrived.tolist() == [-1, -1]
    assert two().weight.tolist() == [1, 1]
    changed = two().replaced(weight=[2, 0.5], arrived=3)
    assert changed.weight.tolist() == [2, 0.5]
    assert changed.weight.dtype == np.float32
    assert changed.arrived.tolist() == [3, 3]
    assert changed.with_columns(a=np.zeros(2)).weight is changed.weight
    assert two().with_columns(a=np.zeros(2)).with_columns(a=np.ones(2)).extras["a"].tolist() == [1, 1]


def test_a_stream_says_when_its_samples_arrived():
    stream = FederatedStream(["a", "b", "a", "a"], [0, 0, 2, 2], [False, False, False, True], list("wxyz"))
    assert stream.samples("a", 2).arrived.tolist() == [2]
    assert stream.of_period(0).arrived.tolist() == [0, 0]
    assert stream.all().arrived.tolist() == stream.period.tolist() == [0, 2, 2, 0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: two().replaced(weight=[1.0]),
            r"weight must have one value per sample, shape \(2,\): got shape \(1,\)",
        ),
        (lambda: two().replaced(weight=[1.0, np.nan]), "weight must be finite and at least 0"),
        (lambda: two().replaced(weight=[1.0, np.inf]), "weight must be finite and at least 0"),
        (lambda: two().replaced(weight=-1), "weight must be finite and at least 0: got -1.0 to -1.0"),
        (lambda: two().with_columns(a=np.zeros(3)), r"'a' must have 2 rows, one per sample: got shape \(3,\)"),
        (lambda: two().with_columns(a=np.float64(3)), r"'a' must have 2 rows, one per sample: got shape \(\)"),
        (lambda: two().with_columns(a=np.array(["x", "y"])), "'a' must hold numbers: got dtype <U1"),
        (lambda: two(arrived=np.zeros((2, 1))), "arrived must have one value per sample"),
    ],
)
def test_mistakes_are_explained(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong()
