"""Samples as bytes, without pickle: texts and numbers as JSON, arrays as they lie in memory, in one safetensors block.

safetensors checks every length and offset against the bytes that are there before it makes anything of them.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from coreplay.errors import InputError

_JSON, _ARRAY = "json", "array:"
_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


def encode(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a sample whose fields are texts, numbers, booleans, None or numpy arrays of numbers.

    numpy's scalars come back as Python's numbers.

    >>> decode(encode({"text": "play jazz", "label": 3, "time": None}))
    {'text': 'play jazz', 'label': 3, 'time': None}
    >>> decode(encode({"image": np.eye(2, dtype=np.uint8)}))["image"].tolist()
    [[1, 0], [0, 1]]
    """
    small, arrays = {}, {}
    for name, value in fields.items():
        if not isinstance(name, str):
            raise InputError(f"a field's name must be a text: got {name!r}")
        if isinstance(value, np.ndarray):
            if value.dtype.str[1:] not in _DTYPES:
                raise InputError(f"field {name!r} is an array of {value.dtype}: expected numbers or booleans")
            # safetensors takes memory as it lies: rows one after the other, little-endian
            arrays[_ARRAY + name] = np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
        else:
            small[name] = value.item() if isinstance(value, np.generic) else value
            if not isinstance(small[name], str | int | float | None):
                raise InputError(f"field {name!r} is a {type(value).__name__}: expected text, number or array")
    try:
        text = json.dumps(small, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        arrays[_JSON] = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
        return bytes(save(arrays))
    except (ValueError, SafetensorError) as error:
        raise InputError(f"the fields {sorted(fields)} can't be written: {error}") from None


def decode(payload: bytes) -> dict[str, Any]:
    """Return the fields of a sample that `encode` wrote; `InputError` for any other bytes."""
    if not isinstance(payload, bytes):
        raise InputError(f"a payload must be bytes: got {type(payload).__name__}")
    try:
        arrays = load(payload)
        text = arrays.pop(_JSON)
        if text.dtype != np.uint8 or not all(name.startswith(_ARRAY) for name in arrays):
            raise ValueError("it holds what no sample has")
        fields = json.loads(text.tobytes().decode("utf-8", "surrogatepass"), parse_constant=_refused)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"these {len(payload)} bytes are no sample: {error}") from None
    named = {name.removeprefix(_ARRAY): array for name, array in arrays.items()}
    if not isinstance(fields, dict) or not all(
        isinstance(value, str | int | float | None) for value in fields.values()
    ):
        raise InputError(f"these {len(payload)} bytes are no sample: expected texts and numbers by name")
    if fields.keys() & named.keys():
        raise InputError(f"these {len(payload)} bytes are no sample: {sorted(fields.keys() & named.keys())} twice")
    return fields | named


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number")
