"""Bytes from strangers: every well-formed message comes back as it was, every other one is an InputError."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay.codec import encode
from coreplay.coordination import Broadcast, Contribution
from coreplay.errors import InputError

names = st.text(min_size=1, max_size=20)
small = st.integers(0, 1000)
vectors = st.lists(st.floats(-1e6, 1e6, width=32), min_size=0, max_size=20).map(np.float32)


@given(run=names, period=small, round=small, client=names, basis=st.integers(-1, 1000), vector=vectors)
def test_contributions_survive(run, period, round, client, basis, vector):
    sent = Contribution(run, period, round, client, basis, vector)
    got = Contribution.from_bytes(sent.to_bytes())
    assert (got.run, got.period, got.round, got.client, got.basis) == (run, period, round, client, basis)
    np.testing.assert_array_equal(got.vector, vector)
    assert got.to_bytes() == sent.to_bytes()


@given(
    run=names,
    behind=st.dictionaries(names, st.integers(-1, 50)),
    weights=st.lists(st.floats(0, 1), min_size=4, max_size=4).map(tuple),
    numbers=st.dictionaries(names, st.floats(-1e9, 1e9)),
    vector=vectors,
    final=st.booleans(),
)
def test_broadcasts_survive(run, behind, weights, numbers, vector, final):
    sent = Broadcast(run, 1, 3, final, 7, vector, behind, weights, numbers)
    got = Broadcast.from_bytes(sent.to_bytes())
    for name in ("run", "round", "final", "clients", "behind", "weights", "numbers"):
        assert getattr(got, name) == getattr(sent, name)
    np.testing.assert_array_equal(got.vector, vector)


GOOD = Contribution("run", 0, 1, "alice", 0, np.float32([1, 2, 3])).to_bytes()


@given(data=st.binary(max_size=200))
def test_noise_is_refused(data):
    for kind in (Contribution, Broadcast):
        with pytest.raises(InputError):
            kind.from_bytes(data)


@given(place=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255), cut=st.integers(0, len(GOOD)))
@settings(max_examples=300)
def test_changed_bytes_are_refused_or_another_well_formed_message(place, value, cut):
    changed = bytearray(GOOD)
    changed[place] = value
    for data in (bytes(changed), GOOD[:cut], GOOD + GOOD[:cut]):
        try:
            got = Contribution.from_bytes(data)
        except InputError:
            continue
        assert len(got.vector) == 3


FIELDS = {"kind": "contribution", "run": "r", "period": 0, "round": 0, "client": "c", "basis": -1}
FIELDS |= {"vector": np.zeros(2, dtype=np.float32)}


@pytest.mark.parametrize(
    "data",
    [
        encode(FIELDS | {"vector": np.zeros(2)}),
        encode(FIELDS | {"vector": np.zeros((2, 1), dtype=np.float32)}),
        encode(FIELDS | {"vector": [0.0, 0.0]}),
        encode(FIELDS | {"vector": None}),
        encode(FIELDS | {"round": True}),
        encode(FIELDS | {"round": 1.5}),
        encode(FIELDS | {"round": -1}),
        encode(FIELDS | {"round": 2**40}),
        encode(FIELDS | {"round": np.zeros(1)}),
        encode(FIELDS | {"basis": -2}),
        encode(FIELDS | {"client": ""}),
        encode(FIELDS | {"client": "x" * 1000}),
        encode(FIELDS | {"more": 1}),
        encode({k: v for k, v in FIELDS.items() if k != "run"}),
        encode(FIELDS | {"kind": "broadcast"}),
        encode(FIELDS | {"kind": np.zeros(2)}),
        b"",
        "text",
    ],
)
def test_hostile_bytes_give_an_input_error(data):
    assert len(Contribution.from_bytes(encode(FIELDS)).vector) == 2
    with pytest.raises(InputError):
        Contribution.from_bytes(data)


def test_messages_that_are_too_long_are_refused_unread():
    data = Contribution("run", 0, 0, "ann", -1, np.zeros(10_000)).to_bytes()
    assert len(Contribution.from_bytes(data, dimension=10_000).vector) == 10_000
    with pytest.raises(InputError, match="at most 20384 are possible"):
        Contribution.from_bytes(data, dimension=1000)


def test_vectors_are_read_only_views_of_the_message():
    data = Contribution("run", 0, 0, "ann", -1, np.ones(4)).to_bytes()
    got = Contribution.from_bytes(data).vector
    assert np.shares_memory(got, np.frombuffer(data, dtype=np.uint8))
    assert not got.flags.writeable


@pytest.mark.parametrize(
    "change",
    [
        {"weights": [1.0, "a"]},
        {"weights": [1.0]},
        {"weights": [10**400, 1.0]},
        {"numbers": {"kappa": "x"}},
        {"numbers": {"kappa": True}},
        {"behind": {"a": 1.5}},
        {"behind": []},
        {"clients": 0},
        {"final": 1},
    ],
)
def test_hostile_broadcasts_give_an_input_error(change):
    good = {"kind": "broadcast", "run": "r", "period": 0, "round": 1, "final": False, "clients": 2}
    good |= {"behind": {}, "weights": [0.5, 0.5], "numbers": {}, "vector": np.zeros(2, dtype=np.float32)}
    assert Broadcast.from_bytes(encode(good)).clients == 2
    with pytest.raises(InputError):
        Broadcast.from_bytes(encode(good | change))
    with pytest.raises(InputError, match="finite"):
        Broadcast.from_bytes(encode(good | {"vector": np.float32([np.nan])}))
