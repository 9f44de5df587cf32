"""Samples and messages as bytes, in one format and without pickle: small fields as JSON, arrays as they lie in memory.

The bytes are a safetensors file in which the array "json" holds the small fields. They may come from anyone, so every
length and place is checked before anything is made of them. Arrays are read-only views: nothing is copied.
"""

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import InputError

LONGEST_JSON = 16 * 2**20  # bytes of a message besides its arrays
LONGEST_NAME = 200
_JSON, _ARRAY = "json", "array:"
_MOST_SIZES = 32 + 2  # dimensions of an array, its start and its end
_DTYPES = {  # in the order in which safetensors writes them
    "U64": "u8", "I64": "i8", "F64": "f8", "F32": "f4", "U32": "u4", "I32": "i4",
    "F16": "f2", "U16": "u2", "I16": "i2", "I8": "i1", "U8": "u1", "BOOL": "b1",
}  # fmt: skip
_CODES = {dtype: (rank, code) for rank, (code, dtype) in enumerate(_DTYPES.items())}


def encode(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of fields: texts, numbers, booleans, None, lists and dicts of these, or arrays.

    A numpy scalar comes back as a Python number.

    >>> decode(encode({"text": "play jazz", "label": 3, "time": None}))
    {'text': 'play jazz', 'label': 3, 'time': None}
    >>> decode(encode({"image": np.eye(2, dtype=np.uint8)}))["image"].tolist()
    [[1, 0], [0, 1]]
    """
    small: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in fields.items():
        if not isinstance(name, str):
            raise InputError(f"a field's name must be a text: got {name!r}")
        if isinstance(value, np.ndarray):
            if value.dtype.str[1:] not in _CODES:
                raise InputError(f"field {name!r} is an array of {value.dtype}: expected numbers or booleans")
            arrays[_ARRAY + name] = np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
        else:
            small[name] = value.item() if isinstance(value, np.generic) else value
            if not _is_json(small[name]):
                raise InputError(f"field {name!r} is a {type(value).__name__}: expected text, number or array")
    try:
        text = json.dumps(small, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        arrays[_JSON] = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
        return _written(arrays)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the fields {sorted(fields)} can't be written: {error}") from None


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return all(map(_is_json, value)) if isinstance(value, list) else isinstance(value, str | int | float | None)


def _written(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes that safetensors would write for these arrays."""
    ordered = sorted((*_CODES[array.dtype.str[1:]], name) for name, array in arrays.items())
    header, end = {}, 0
    for _, code, name in ordered:
        start, end = end, end + arrays[name].nbytes
        header[name] = {"dtype": code, "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *(arrays[name].reshape(-1).data for *_, name in ordered)))


def decode(data: bytes | bytearray | memoryview, *, longest: int | None = None) -> dict[str, Any]:
    """Return the fields that `encode` wrote; `InputError` for other bytes, and for more than `longest`."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InputError(f"samples and messages are decoded from bytes: got {type(data).__name__}")
    view = memoryview(data).cast("B").toreadonly()
    if longest is not None and len(view) > longest:
        raise InputError(f"message has {len(view)} bytes: at most {longest} are possible")
    try:
        arrays = _views(view)
        text = arrays.pop(_JSON)
        if text.dtype != np.uint8 or not all(name.startswith(_ARRAY) for name in arrays):
            raise ValueError("it holds other arrays")
        fields = _parsed(text.tobytes())
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"these {len(view)} bytes are not a sample or message of coreplay: {error}") from None
    named = {name.removeprefix(_ARRAY): array for name, array in arrays.items()}
    if fields.keys() & named.keys():
        raise InputError(f"a field must be there once: got {sorted(fields.keys() & named.keys())} twice")
    return fields | named


def _parsed(text: bytes) -> dict[str, Any]:
    found = json.loads(text.decode("utf-8", "surrogatepass"), parse_constant=_finite, parse_float=_finite)
    if not isinstance(found, dict):
        raise ValueError("its JSON is not an object")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _views(view: memoryview) -> dict[str, NDArray[Any]]:
    """Return the arrays in a safetensors file; `ValueError`, `KeyError` or `TypeError` if it is not one."""
    length = int.from_bytes(view[:8], "little")
    if len(view) < 8 or length > min(LONGEST_JSON, len(view) - 8):
        raise ValueError("its header is not complete")
    header, body, end = _parsed(bytes(view[8 : 8 + length])), view[8 + length :], 0
    arrays = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        (start, stop), shape, dtype = entry["data_offsets"], entry["shape"], np.dtype("<" + _DTYPES[entry["dtype"]])
        sizes = (*shape, start, stop)
        if len(sizes) > _MOST_SIZES or not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
            raise ValueError(f"the shape and place of array {name[:40]!r} are not a few whole numbers")
        if start != end or stop - start != math.prod(shape) * dtype.itemsize or stop > len(body):
            raise ValueError(f"array {name[:40]!r} is not as long as its shape says")
        array = np.frombuffer(body[start:stop], dtype=dtype).reshape(shape)
        if dtype == np.bool_ and np.any(array.view(np.uint8) > 1):
            raise ValueError(f"array {name[:40]!r} has values that are neither true nor false")
        arrays[name], end = array, stop
    if end != len(body):
        raise ValueError(f"{len(body) - end} bytes belong to no array")
    return arrays


def pack(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message, whose fields may also be bytes.

    >>> unpack(pack("greeting", {"to": "you", "data": b"123"}), "greeting", {"to": str, "data": bytes})
    {'to': 'you', 'data': b'123'}
    """
    plain = {k: np.frombuffer(v, dtype=np.uint8) if isinstance(v, bytes) else v for k, v in fields.items()}
    return encode({"kind": kind, **plain})


def unpack(
    data: bytes | memoryview, kind: str, fields: Mapping[str, type], *, longest: int | None = None
) -> dict[str, Any]:
    """Return the fields of a message, which must be exactly these; `InputError` for other bytes.

    The type of a field is str, int, float, bool, list, dict, bytes, or a numpy scalar type for a flat array of it.
    """
    found = decode(data, longest=longest)
    if not isinstance(actual := found.pop("kind", None), str) or actual != kind:
        raise InputError(f"message is not a {kind}")
    if found.keys() != fields.keys():
        raise InputError(f"{kind} must have the fields {sorted(fields)}: got {str(sorted(found))[:200]}")
    for name, wanted in fields.items():
        value = found[name]
        if isinstance(value, np.ndarray):
            dtype = np.uint8 if wanted is bytes else wanted
            right, got = value.dtype.type is dtype and value.ndim == 1, f"array of {value.dtype}{value.shape}"
        else:
            right, got = type(value) is wanted, type(value).__name__
        if not right:
            raise InputError(f"{kind} has {name} of type {got}: expected {wanted.__name__}")
        found[name] = value.tobytes() if wanted is bytes else value
    return found


def check_name(value: Any, what: str) -> str:
    """Check the name of a run or of a client."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise InputError(f"{what} must be a text of 1 to {LONGEST_NAME} characters: got {str(value)[:40]!r}")
    return value


def check_count(value: Any, what: str, *, least: int = 0) -> int:
    """Check a small whole number of a message."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise InputError(f"{what} must be a whole number from {least}: got {str(value)[:40]}")
    return value


def check_finite(value: Any, what: str) -> float:
    """Check a real number of a message."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InputError(f"{what} must be a finite number: got {str(value)[:40]}")
    return float(value)
