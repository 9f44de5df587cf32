"""Samples as bytes: every sample comes back as it was, all other bytes are an InputError."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from coreplay.errors import InputError
from coreplay.replay import decode, encode

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
names = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["json", "__metadata__", "array:"])


def same(got, sent):
    if isinstance(sent, np.ndarray):
        np.testing.assert_array_equal(got, sent)
        assert (got.dtype, got.shape) == (sent.dtype.newbyteorder("="), sent.shape)
    else:
        assert type(got) is type(sent)
        assert got == sent


@given(fields=st.dictionaries(names, small | arrays, max_size=5), turned=st.booleans())
def test_samples_survive(fields, turned):
    if turned:  # views whose rows do not lie one after the other
        fields = {name: value.T[::-1] if getattr(value, "ndim", 0) else value for name, value in fields.items()}
    payload = encode(fields)
    got = decode(payload)
    assert got.keys() == fields.keys()
    for name, value in fields.items():
        same(got[name], value)
    assert encode(fields) == payload


def test_numpy_scalars_come_back_as_numbers():
    got = decode(encode({"label": np.int64(3), "weight": np.float32(0.5), "new": np.bool_(True)}))
    assert got == {"label": 3, "weight": 0.5, "new": True}
    assert [type(value) for value in got.values()] == [int, float, bool]


@pytest.mark.parametrize(
    "value",
    [[1, 2], {"a": 1}, b"x", object(), float("nan"), float("inf"), np.array(["a"]), np.array([object()]),
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
    with pytest.raises(InputError, match=f"these {len(data)} bytes are no sample"):
        decode(data)


def test_cut_and_lengthened_bytes_are_refused():
    for length in range(len(GOOD)):
        for payload in (GOOD[:length], GOOD + GOOD[: length + 1]):
            with pytest.raises(InputError, match="are no sample"):
                decode(payload)


@given(place=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_changed_bytes_are_refused_or_another_sample(place, value):
    changed = bytearray(GOOD)
    changed[place] = value
    try:
        fields = decode(bytes(changed))
    except InputError:
        return
    assert all(isinstance(value, str | int | float | np.ndarray | None) for value in fields.values())


def block(text, **more):
    return save({"json": np.frombuffer(text.encode(), dtype=np.uint8), **more})


def test_only_bytes_are_samples():
    with pytest.raises(InputError, match="a payload must be bytes: got str"):
        decode("text")


@pytest.mark.parametrize(
    "payload",
    [
        block("[1]"), block('{"a": [1]}'), block('{"a": NaN}'), block('{"a": {}}'), block("{"), block("[" * 100_000),
        block("{}", other=np.zeros(2)), save({"array:x": np.zeros(2)}), save({"json": np.zeros(3)}),
        block('{"x": 1}', **{"array:x": np.zeros(2)}), block('{"a": 1}x'),
        block('{"a": 1' + "0" * 5000 + "}"),
    ],
)  # fmt: skip
def test_well_formed_blocks_that_hold_no_sample_are_refused(payload):
    with pytest.raises(InputError, match="are no sample"):
        decode(payload)
