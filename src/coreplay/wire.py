"""Messages as bytes: a fixed head, JSON for the small things, raw little-endian numbers for the large one. No pickle.

    "CPLY" | version (1 byte) | length of the JSON (4 bytes) | length of the payload (8 bytes) | JSON | payload

Whoever reads bytes reads what a stranger wrote, so every length is checked against what is there before anything is
made of it, the JSON must have exactly the fields of its message, and the payload is looked at where it lies.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import InputError

MAGIC, VERSION = b"CPLY", 1
HEAD = struct.Struct("<4sBIQ")
LONGEST_JSON = 16 * 2**20
LONGEST_NAME = 200


def pack(kind: str, fields: Mapping[str, Any], payload: bytes | memoryview = b"") -> bytes:
    """Return the bytes of a message.

    >>> fields, payload = unpack(pack("greeting", {"to": "you"}, b"123"), "greeting", {"to": str})
    >>> fields, bytes(payload)
    ({'to': 'you'}, b'123')
    """
    text = json.dumps({"kind": kind, **fields}, separators=(",", ":"), allow_nan=False).encode()
    return b"".join((HEAD.pack(MAGIC, VERSION, len(text), len(payload)), text, payload))


def unpack(
    data: bytes, kind: str, fields: Mapping[str, type], *, longest: int | None = None
) -> tuple[dict[str, Any], memoryview]:
    """Take a message apart: its fields, each of the given type, and its payload; `InputError` for any other bytes.

    More than `longest` bytes are refused before anything is made of them.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InputError(f"a message must be bytes: got {type(data).__name__}")
    view = memoryview(data).cast("B")
    if longest is not None and len(view) > longest:
        raise InputError(f"{kind} has {len(view)} bytes: at most {longest} are possible")
    if len(view) < HEAD.size:
        raise InputError(f"a message has at least {HEAD.size} bytes: got {len(view)}")
    magic, version, text_length, payload_length = HEAD.unpack_from(view)
    if magic != MAGIC or version != VERSION:
        raise InputError(f"not a coreplay message of version {VERSION}: it starts with {bytes(view[:5])!r}")
    if text_length > LONGEST_JSON or HEAD.size + text_length + payload_length != len(view):
        raise InputError(
            f"message of {len(view)} bytes announces {text_length} of JSON and {payload_length} of numbers: "
            "it was cut or changed"
        )
    start = HEAD.size + text_length
    found = _json(bytes(view[HEAD.size : start]))
    if not isinstance(found, dict) or found.pop("kind", None) != kind:
        raise InputError(f"message is not a {kind}")
    if set(found) != set(fields):
        raise InputError(f"{kind} must have the fields {sorted(fields)}: got {sorted(found)}")
    for name, wanted in fields.items():
        value = found[name]
        if isinstance(value, bool) is not (wanted is bool) or not isinstance(value, wanted):
            raise InputError(f"{kind} has {name} of type {type(value).__name__}: expected {wanted.__name__}")
    return found, view[start:]


def _json(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InputError("message holds broken JSON") from None


def _no_constant(name: str) -> None:
    raise ValueError(name)


def numbers(payload: memoryview, dtype: str) -> NDArray[Any]:
    """Look at a payload as numbers, without a copy; the result is read-only."""
    size = np.dtype(dtype).itemsize
    if len(payload) % size:
        raise InputError(f"payload of {len(payload)} bytes is not a whole number of {size}-byte numbers")
    array = np.frombuffer(payload, dtype=dtype)
    array.flags.writeable = False
    return array


def name(value: Any, what: str) -> str:
    """Check the name of a run or of a client."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise InputError(f"{what} must be a text of 1 to {LONGEST_NAME} characters: got {str(value)[:40]!r}")
    return value


def count(value: Any, what: str, *, least: int = 0) -> int:
    """Check a small whole number of a message."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise InputError(f"{what} must be a whole number from {least}: got {str(value)[:40]}")
    return value


def finite(value: Any, what: str) -> float:
    """Check a real number of a message."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
    except OverflowError:
        number = float("nan")
    if not np.isfinite(number):
        raise InputError(f"{what} must be a finite number: got {str(value)[:40]}")
    return number
