"""Requests and replies as Flower's records, and as bytes for another process on this machine."""

import json
import math
from functools import cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from coreplay.codec import decode, encode
from coreplay.errors import InputError
from coreplay.flower.shared_array import SharedArray
from coreplay.runtime.requests import Message, Reply, kinds

_HEAD, ARRAYS = "coreplay", "arrays"
_FIELDS: dict[str, type] = {"kind": str, "fields": str, "data": bytes}
_kinds = cache(kinds)


def to_record(message: Message, *, shared: bool = False) -> RecordDict:
    """Return a message as Flower carries it; `shared`: with its arrays in the shared memory of a simulation.

    >>> from coreplay.runtime.requests import TrainReply
    >>> found = from_record(to_record(TrainReply(samples=7, arrays={"change": np.float32([1, 2])})))
    >>> found.samples, found.arrays["change"].tolist()
    (7, [1.0, 2.0])
    """
    small = json.dumps(message.small_fields())
    record = RecordDict({_HEAD: ConfigRecord({"kind": message.kind, "fields": small, "data": message.data})})
    if message.arrays:
        record[ARRAYS] = _array_record(message, shared)
    return record


def _array_record(message: Message, shared: bool) -> ArrayRecord:
    """Return the arrays as Flower carries them, made once for all clients that the message goes to."""
    known: dict[bool, ArrayRecord] = message.__dict__.setdefault("_records", {})
    if shared not in known:
        found = ArrayRecord()
        for name, array in message.arrays.items():
            vector = np.ascontiguousarray(array)
            if shared:  # what a server sends goes to many, so it is put there once; a client's goes as it is
                found[name] = SharedArray(vector) if isinstance(message, Reply) else SharedArray.post(vector)
            else:
                found[name] = Array(vector)
        known[shared] = found
    return known[shared]


def from_record(record: RecordDict) -> Message:
    """Read a message; anything else is an `InputError`."""
    head = record.get(_HEAD)  # not its views by kind: they make a cycle, and arrays would wait for the collector
    if not isinstance(head, ConfigRecord):
        raise InputError("not a coreplay message")
    if set(head) != set(_FIELDS) or any(type(head[name]) is not kind for name, kind in _FIELDS.items()):
        raise InputError("its fields are not those of a coreplay message")
    try:
        fields: Any = json.loads(str(head["fields"]))
    except (ValueError, RecursionError):
        raise InputError("its fields are not JSON") from None
    arrays = {name: _read(array) for name, array in (_arrays(record) or {}).items()}
    return _made(str(head["kind"]), fields, arrays, bytes(head["data"]))  # type: ignore[arg-type]


def _made(kind: str, fields: Any, arrays: dict[str, NDArray[Any]], data: bytes) -> Message:
    if kind not in _kinds():
        raise InputError(f"unsupported message {kind[:40]!r}: server and client versions may differ")
    if not isinstance(fields, dict):
        raise InputError("its fields are not a table")
    if isinstance(fields.get("keep_from"), list):
        fields["keep_from"] = tuple(fields["keep_from"])  # JSON has no tuples
    return _kinds()[kind].read(fields, arrays, data)


def to_bytes(message: Message) -> bytes:
    """Return a message as bytes, for another process on this machine."""
    arrays = {f"array:{name}": array for name, array in message.arrays.items()}
    data = np.frombuffer(message.data, dtype=np.uint8)
    small = json.loads(json.dumps(message.small_fields(), allow_nan=False))
    return encode({"kind": message.kind, "fields": small, "data": data, **arrays})


def from_bytes(data: bytes | bytearray) -> Message:
    """Read a message from another process on this machine; its arrays are read-only views of the bytes."""
    found = decode(data)
    kind, fields, inner = (found.pop(name, None) for name in ("kind", "fields", "data"))
    if not isinstance(kind, str) or not isinstance(inner, np.ndarray):
        raise InputError("not a coreplay message")
    arrays = {name.removeprefix("array:"): array for name, array in found.items()}
    return _made(kind, fields, arrays, inner.tobytes())


def size_of(record: RecordDict) -> int:
    """Return how many bytes a message has, without reading any of them."""
    head = record.get(_HEAD)
    values = head.values() if isinstance(head, ConfigRecord) else ()
    size = sum(len(value) for value in values if isinstance(value, str | bytes | list))
    arrays = (_arrays(record) or ArrayRecord()).values()
    return size + sum(a.vector.nbytes if isinstance(a, SharedArray) else len(a.data) for a in arrays)


def is_shared(record: RecordDict) -> bool:
    """Return whether a message's arrays came through shared memory: then those of the reply may go there too."""
    return any(isinstance(array, SharedArray) for array in (_arrays(record) or {}).values())


def _arrays(record: RecordDict) -> ArrayRecord | None:
    found = record.get(ARRAYS)
    return found if isinstance(found, ArrayRecord) else None


def _read(array: Array) -> NDArray[Any]:
    if isinstance(array, SharedArray):
        return array.vector
    try:
        if math.prod(array.shape) * np.dtype(array.dtype).itemsize > len(array.data):
            raise ValueError("it is shorter than it says")
        return array.numpy()  # reads numpy's own format, with pickle refused
    except (ValueError, EOFError, TypeError, MemoryError, OverflowError) as error:
        raise InputError(f"its array can't be read: {error}") from None
