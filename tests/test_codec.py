"""Samples and messages as bytes: they come back as they were, in safetensors' format; other bytes are an InputError."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load, save

from coreplay.codec import decode, encode, pack, unpack
from coreplay.errors import InputError

kinds = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)
arrays = hnp.arrays(kinds, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
small = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(st.characters())
)
nested = st.recursive(small, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
names = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["json", "__metadata__", "array:"])


def same(got, sent):
    if isinstance(sent, np.ndarray):
        np.testing.assert_array_equal(got, sent)
        assert (got.dtype, got.shape) == (sent.dtype.newbyteorder("="), sent.shape)
    else:
        assert type(got) is type(sent)
        assert got == sent


@given(fields=st.dictionaries(names, nested | arrays, max_size=5), turned=st.booleans())
def test_fields_survive(fields, turned):
    if turned:  # views whose rows do not lie one after the other
        fields = {name: value.T[::-1] if getattr(value, "ndim", 0) else value for name, value in fields.items()}
    payload = encode(fields)
    got = decode(payload)
    assert got.keys() == fields.keys()
    for name, value in fields.items():
        same(got[name], value)
    assert encode(fields) == payload
    stored = load(payload)
    assert save(stored) == payload
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            same(stored["array:" + name], value)
            assert not got[name].flags.writeable
            assert value.size == 0 or np.shares_memory(got[name], np.frombuffer(payload, dtype=np.uint8))


def test_numpy_scalars_come_back_as_numbers():
    got = decode(encode({"label": np.int64(3), "weight": np.float32(0.5), "new": np.bool_(True)}))
    assert got == {"label": 3, "weight": 0.5, "new": True}
    assert [type(value) for value in got.values()] == [int, float, bool]


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 1}, {"a": {2}}, [float("inf")], [np.zeros(2)], b"x", object(),
     float("nan"), float("inf"), np.array(["a"]), np.array([object()]),
     np.array(["2020"], dtype="datetime64[s]"), np.zeros(2, dtype=[("a", "i4")]), np.datetime64("2020"), 1j],
)  # fmt: skip
def test_what_is_no_text_number_or_array_is_refused(value):
    with pytest.raises(InputError, match="'x'"):
        encode({"x": value})


def test_names_are_texts():
    with pytest.raises(InputError, match="a field's name must be a text: got 3"):
        encode({3: "x"})
    with pytest.raises(InputError, match="can't be written"):
        encode({"\ud800": np.zeros(2)})


GOOD = encode({"text": "play jazz", "label": 3, "image": np.arange(12, dtype=np.float32).reshape(3, 4)})


@given(data=st.binary(max_size=200))
def test_noise_is_refused(data):
    with pytest.raises(InputError, match=f"these {len(data)} bytes are not a sample or message"):
        decode(data)


def test_cut_and_lengthened_bytes_are_refused():
    for length in range(len(GOOD)):
        for payload in (GOOD[:length], GOOD + GOOD[: length + 1]):
            with pytest.raises(InputError, match="are not a sample or message"):
                decode(payload)


@given(place=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_changed_bytes_are_refused_or_another_sample(place, value):
    changed = bytearray(GOOD)
    changed[place] = value
    try:
        fields = decode(changed)
    except InputError:
        return
    assert len(load(bytes(changed))) == 2  # safetensors reads whatever we read
    assert all(isinstance(value, str | int | float | np.ndarray | None) for value in fields.values())


def block(text, **more):
    return save({"json": np.frombuffer(text.encode(), dtype=np.uint8), **more})


def file(header, body=b"{}  "):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(length, start=0, shape=None, dtype="U8"):
    return {"dtype": dtype, "shape": [length] if shape is None else shape, "data_offsets": [start, start + length]}


def test_only_bytes_are_samples():
    with pytest.raises(InputError, match="decoded from bytes: got str"):
        decode("text")


@pytest.mark.parametrize(
    "payload",
    [
        block("[1]"), block('{"a": NaN}'), block('{"a": 1e999}'), block("{"), block("[" * 100_000),
        block("{}", other=np.zeros(2)), save({"array:x": np.zeros(2)}), save({"json": np.zeros(3)}),
        block('{"a": 1}x'),
        block('{"a": 1' + "0" * 5000 + "}"), file({}), file([]), file({"json": 3}), file(b"[" * 100_000),
        file({"json": entry(5)}), file({"json": entry(3)}), file({"json": entry(4, start=1)}),
        file({"json": entry(4, shape=[2, "2"])}), file({"json": entry(4, shape=[-2, -2])}),
        file({"json": entry(4, shape=[2**62, 4])}), file({"json": entry(4, shape=[1] * 100 + [4])}),
        file({"json": entry(4, shape=[True, 4])}), file({"json": entry(4, dtype="F7")}),
        file({"json": entry(2), "array:a": entry(3, start=1)}), file({"json": entry(2), "array:a": entry(1, start=3)}),
        file({"json": entry(2), "array:a": entry(2, start=2, dtype="BOOL")}, b"{}\1\2"),
        (2**63).to_bytes(8, "little") + b"{}", b"\0" * 8, b"\0" * 4,
    ],
)  # fmt: skip
def test_well_formed_blocks_that_hold_no_sample_are_refused(payload):
    with pytest.raises(InputError, match="are not a sample or message"):
        decode(payload)


def test_a_field_is_there_once():
    with pytest.raises(InputError, match=r"got \['x'\] twice"):
        decode(block('{"x": 1}', **{"array:x": np.zeros(2)}))


TYPES = {"text": str, "count": int, "data": bytes, "vector": np.float32, "names": list, "share": float}
MESSAGE = {"text": "a", "count": 1, "data": b"12", "vector": np.float32([1]), "names": ["a"], "share": 0.5}


def test_messages_have_exactly_their_fields():
    assert unpack(memoryview(pack("greeting", MESSAGE)), "greeting", TYPES) == MESSAGE
    with pytest.raises(InputError, match="message is not a farewell"):
        unpack(pack("greeting", MESSAGE), "farewell", TYPES)
    with pytest.raises(InputError, match="at most 20 are possible"):
        unpack(pack("greeting", MESSAGE), "greeting", TYPES, longest=20)
    for wrong in (MESSAGE | {"more": 1}, {"text": "a"}):
        with pytest.raises(InputError, match="greeting must have the fields"):
            unpack(pack("greeting", wrong), "greeting", TYPES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": True}, "count of type bool: expected int"),
        ({"count": 1.0}, "count of type float: expected int"),
        ({"text": None}, "text of type NoneType: expected str"),
        ({"data": "12"}, "data of type str: expected bytes"),
        ({"data": np.zeros(2)}, r"data of type array of float64\(2,\): expected bytes"),
        ({"names": "12"}, "names of type str: expected list"),
        ({"names": np.zeros(2)}, r"names of type array of float64\(2,\): expected list"),
        ({"vector": np.zeros(1)}, r"vector of type array of float64\(1,\): expected float32"),
        ({"vector": np.float32([[1]])}, r"vector of type array of float32\(1, 1\): expected float32"),
        ({"vector": [1.0]}, "vector of type list: expected float32"),
        ({"share": 1}, "share of type int: expected float"),
    ],
)
def test_fields_have_their_types(change, message):
    with pytest.raises(InputError, match=message):
        unpack(pack("greeting", MESSAGE | change), "greeting", TYPES)
