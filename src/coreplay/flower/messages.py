"""Requests and replies as bytes, and as the Flower records that carry them.

The bytes are the same on the network and on the socket to a resident worker, so a node passes them on unread. Flower
carries them as one array, which it sends in chunks. In a simulation arrays travel beside them in shared memory.
"""

import logging
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from coreplay.codec import decode, encode
from coreplay.errors import InputError, RefusedError
from coreplay.runtime.requests import KINDS, Failed, Message, Reply, Request

_HEAD, _ARRAYS, _PREFIX = "coreplay", "arrays", "array:"


class SharedArray(Array):
    """A vector between the processes of a simulation, in Ray's shared memory, where all read it in place.

    Flower packs an array into bytes, and Ray packs these once more. This one is never packed: pickle hands it over as a
    buffer of its own, which Ray copies into shared memory once. Only for simulations: a deployment knows Flower's own
    `Array` alone.

    >>> import pickle
    >>> pickle.loads(pickle.dumps(SharedArray(np.float32([1, 2])))).vector
    array([1., 2.], dtype=float32)
    """

    def __init__(self, vector: NDArray[Any] | None, reference: Any = None) -> None:
        super().__init__("", (), "shared", b"")
        self._vector, self._reference = vector, reference

    @classmethod
    def post(cls, vector: NDArray[Any]) -> "SharedArray":
        """Put a vector into shared memory for many processes, for as long as any of them has this array."""
        import ray

        return cls(None, ray.put(vector))

    @property
    def vector(self) -> NDArray[Any]:
        """The vector that was given, or a view of shared memory, not to write."""
        if self._vector is None:
            import ray

            self._vector = np.asarray(ray.get(self._reference))
        return self._vector

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[Any, ...]]:
        return SharedArray, (None, self._reference) if self._reference is not None else (self._vector, None)


def to_bytes(message: Message, *, arrays: bool = True) -> bytes:
    """Return a message as bytes, with or without its arrays."""
    fields = {name: list(v) if isinstance(v, tuple) else v for name, v in message.small_fields().items()}
    data = np.frombuffer(message.data, dtype=np.uint8)
    found = {_PREFIX + name: array for name, array in message.arrays.items()} if arrays else {}
    return encode({"kind": message.kind, "fields": fields, "data": data, **found})


def from_bytes(data: bytes, shared: dict[str, NDArray[Any]] | None = None) -> Message:
    """Read a message; its arrays are read-only views of the bytes. Anything but a message is an `InputError`."""
    found = decode(data)
    kind, fields, inner = (found.pop(name, None) for name in ("kind", "fields", "data"))
    arrays = {name.removeprefix(_PREFIX): array for name, array in found.items() if isinstance(array, np.ndarray)}
    known = isinstance(kind, str) and isinstance(fields, dict) and isinstance(inner, np.ndarray)
    if not known or len(arrays) < len(found):
        raise InputError("its fields are not those of a coreplay message")
    if kind not in KINDS:
        raise InputError(f"unsupported message {kind[:40]!r}: server and client versions may differ")
    for name in ("keep_from", "rows"):
        if isinstance(fields.get(name), list):
            fields[name] = tuple(fields[name])  # JSON has no tuples
    return KINDS[kind].read(fields, arrays | (shared or {}), inner.tobytes())


def to_record(message: Message, *, shared: bool = False) -> RecordDict:
    """Return a message as Flower carries it; `shared`: with its arrays in the shared memory of a simulation.

    >>> from coreplay.runtime.requests import TrainReply
    >>> found = from_record(to_record(TrainReply(samples=7, arrays={"change": np.float32([1, 2])})))
    >>> found.samples, found.arrays["change"].tolist()
    (7, [1.0, 2.0])
    """
    known: dict[bool, RecordDict] = message.__dict__.setdefault("_records", {})  # made once for all clients
    if shared not in known:
        known[shared] = wrap(to_bytes(message, arrays=not shared))
        if shared and message.arrays:  # what a server sends goes to many, so it is put there once
            put = SharedArray if isinstance(message, Reply) else SharedArray.post
            known[shared][_ARRAYS] = vectors = ArrayRecord()
            for name, array in message.arrays.items():
                vectors[name] = put(np.ascontiguousarray(array))
    return RecordDict(dict(known[shared].items()))


def from_record(record: RecordDict) -> Message:
    """Read a message; anything else is an `InputError`."""
    shared = {}
    for name, array in _arrays(record, _ARRAYS).items():
        if not isinstance(array, SharedArray):
            raise InputError("its arrays are not a coreplay message's")
        shared[name] = array.vector
    return from_bytes(payload(record), shared)


def read_request(record: RecordDict) -> Request:
    """Read a request; anything else is an `InputError`."""
    request = from_record(record)
    if not isinstance(request, Request):
        raise InputError(f"a {request.kind} is not a request")
    return request


def failure(error: Exception, request: Request) -> Failed:
    """Log an error, and return what the server may read of it: the text of any other than ours may quote data."""
    logging.getLogger(__name__).error("request %r failed", request.kind, exc_info=error)
    text = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}; the log of its node says more"
    return Failed(error=text).answering(request, "")


def wrap(data: bytes) -> RecordDict:
    """Return the bytes of a message as Flower carries them."""
    return RecordDict({_HEAD: ArrayRecord({_HEAD: Array("uint8", (len(data),), "coreplay", data)})})


def payload(record: RecordDict) -> bytes:
    """Return the bytes of a message that Flower has carried."""
    head = _arrays(record, _HEAD)
    if _HEAD not in head:
        raise InputError("not a coreplay message")
    return head[_HEAD].data


def size_of(record: RecordDict) -> int:
    """Return how many bytes a message has, without reading any of them."""
    found = [array for name in (_HEAD, _ARRAYS) for array in _arrays(record, name).values()]
    return sum(a.vector.nbytes if isinstance(a, SharedArray) else len(a.data) for a in found)


def is_shared(record: RecordDict) -> bool:
    """Return whether a message's arrays came through shared memory: then those of the reply may go there too."""
    return any(isinstance(array, SharedArray) for array in _arrays(record, _ARRAYS).values())


def _arrays(record: RecordDict, name: str) -> dict[str, Array]:
    found = record.get(name)  # not its views by kind: they make a cycle, and arrays would wait for the collector
    return dict(found.items()) if isinstance(found, ArrayRecord) else {}
