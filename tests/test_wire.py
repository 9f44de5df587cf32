"""Bytes from strangers: every well-formed message comes back as it was, every other one is an InputError."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay.coordination import Broadcast, Contribution
from coreplay.errors import InputError
from coreplay.wire import HEAD, MAGIC, VERSION

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


def build(text, payload=b"", text_length=None, payload_length=None):
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    lengths = (
        len(text) if text_length is None else text_length,
        len(payload) if payload_length is None else payload_length,
    )
    return HEAD.pack(MAGIC, VERSION, *lengths) + text + payload


FIELDS = {"kind": "contribution", "run": "r", "period": 0, "round": 0, "client": "c", "basis": -1}


@pytest.mark.parametrize(
    "data",
    [
        build(FIELDS, payload_length=2**60),
        build(FIELDS, text_length=2**32 - 1),
        build(FIELDS, b"123"),
        build(b"[" * 100_000),
        build(b"1" * 10_000),
        build(b'{"kind": NaN}'),
        build(FIELDS | {"round": True}),
        build(FIELDS | {"round": 1.5}),
        build(FIELDS | {"round": -1}),
        build(FIELDS | {"round": 2**40}),
        build(FIELDS | {"basis": -2}),
        build(FIELDS | {"client": ""}),
        build(FIELDS | {"client": "x" * 1000}),
        build(FIELDS | {"more": 1}),
        build({k: v for k, v in FIELDS.items() if k != "run"}),
        build(FIELDS | {"kind": "broadcast"}),
        build([1]),
        b"",
        "text",
    ],
)
def test_hostile_bytes_give_an_input_error(data):
    with pytest.raises(InputError):
        Contribution.from_bytes(data)


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
    good |= {"behind": {}, "weights": [0.5, 0.5], "numbers": {}}
    assert Broadcast.from_bytes(build(good, bytes(8))).clients == 2
    with pytest.raises(InputError):
        Broadcast.from_bytes(build(good | change, bytes(8)))
    with pytest.raises(InputError, match="finite"):
        Broadcast.from_bytes(build(good, np.float32([np.nan]).tobytes()))
