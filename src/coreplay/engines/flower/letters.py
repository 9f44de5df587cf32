"""Letters: what passes between the server and a client over Flower, in Flower's own records.

A letter says what it asks, which run, period and round it belongs to and, coming from a client, whose it is; so an old
one is recognised. Small facts go as JSON, a model as one vector (or as whatever arrays somebody's own app has), the
messages of a coordination as bytes.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from coreplay import codec
from coreplay.engines.flower.shared import SharedArray
from coreplay.errors import InputError

_HEAD, _VECTOR, ARRAYS = "coreplay", "vector", "arrays"
_KEPT = ("float32", "float64")
_FIELDS: dict[str, Any] = dict.fromkeys(("act", "run", "client"), str) | dict.fromkeys(("period", "round"), int)
_FIELDS |= {"facts": dict, "data": bytes, "model": np.float32 | np.float64 | None}
Model: TypeAlias = NDArray[Any] | ArrayRecord


@dataclass(frozen=True, eq=False)
class Letter:
    """One message, either way.

    >>> sent = Letter("train", "a1", 2, 0, {"samples": 7}, np.float32([1, 2]), client="ann")
    >>> found = Letter.from_record(sent.to_record())
    >>> found.stamp, found.client, found.facts, found.model.tolist()
    (('train', 'a1', 2, 0), 'ann', {'samples': 7}, [1.0, 2.0])
    """

    act: str
    run: str
    period: int
    round: int
    facts: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None
    data: bytes = b""
    client: str = ""

    @property
    def stamp(self) -> tuple[str, str, int, int]:
        """What the letter is about."""
        return self.act, self.run, self.period, self.round

    @property
    def vector(self) -> NDArray[Any]:
        """The model or change as a vector; `InputError` if there is none."""
        if not isinstance(self.model, np.ndarray):
            raise InputError("the letter brings no vector")
        return self.model

    def reply(
        self, client: str, facts: dict[str, Any] | None = None, model: Model | None = None, data: bytes = b""
    ) -> "Letter":
        """Return the answer to this letter."""
        return Letter(*self.stamp, facts or {}, model, data, client)

    def to_record(self, *, shared: bool = False) -> RecordDict:
        """Return the letter as Flower carries it; `shared`: with its vector in the shared memory of a simulation."""
        act, run, period, round = self.stamp
        head: dict[str, Any] = {"act": act, "run": run, "period": period, "round": round, "client": self.client}
        record = RecordDict({_HEAD: ConfigRecord(head | {"facts": json.dumps(self.facts), "data": self.data})})
        if isinstance(self.model, np.ndarray):
            record[_VECTOR] = self._shared if shared else self._array
        elif self.model is not None:
            record[ARRAYS] = self.model
        return record

    @cached_property
    def _array(self) -> ArrayRecord:
        """The vector as Flower carries it, made once for all clients that the letter goes to."""
        return ArrayRecord({_VECTOR: Array(np.ascontiguousarray(self.vector))})

    @cached_property
    def _shared(self) -> ArrayRecord:
        """The vector in shared memory: a server's, which many get, is laid there once, a client's goes as it is."""
        vector, record = np.ascontiguousarray(self.vector), ArrayRecord()
        record[_VECTOR] = SharedArray(vector) if self.client else SharedArray.post(vector)
        return record

    def to_bytes(self) -> bytes:
        """Return a letter without somebody else's arrays as bytes, for another process on this machine."""
        act, run, period, round = self.stamp
        vector = None if self.model is None else np.ascontiguousarray(self.vector)
        fields = {"act": act, "run": run, "period": period, "round": round, "client": self.client, "facts": self.facts}
        return codec.pack("letter", fields | {"model": vector, "data": self.data})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Letter":
        """Read what `to_bytes` wrote."""
        found = codec.unpack(data, "letter", _FIELDS)
        return cls(**found | {"model": None if found["model"] is None else found["model"].copy()})

    @classmethod
    def from_record(cls, record: RecordDict) -> "Letter":
        """Read a letter; anything else is an `InputError`."""
        head = record.get(
            _HEAD
        )  # not its views by kind: they make a cycle, and the vector would wait for the collector
        if not isinstance(head, ConfigRecord):
            raise InputError("it is no letter of coreplay")
        kinds: dict[str, type] = dict.fromkeys(("act", "run", "client", "facts"), str)
        kinds |= {"period": int, "round": int, "data": bytes}
        if set(head) != set(kinds) or any(type(head[name]) is not kind for name, kind in kinds.items()):
            raise InputError("its fields are not those of a letter")
        values: dict[str, Any] = dict(head.items())
        try:
            values["facts"] = json.loads(values["facts"])
        except (ValueError, RecursionError):
            raise InputError("its facts are no JSON") from None
        if not isinstance(values["facts"], dict):
            raise InputError("its facts are no table")
        return cls(**values, model=_vector(record) if _VECTOR in record else _arrays(record, ARRAYS))


def size_of(record: RecordDict) -> int:
    """Return how many bytes a letter has, without reading any of them."""
    head = record.get(_HEAD)
    values = head.values() if isinstance(head, ConfigRecord) else ()
    size = sum(len(value) for value in values if isinstance(value, str | bytes | list))
    for name in (_VECTOR, ARRAYS):
        arrays = _arrays(record, name) or ArrayRecord()
        size += sum(a.vector.nbytes if isinstance(a, SharedArray) else len(a.data) for a in arrays.values())
    return size


def is_shared(record: RecordDict) -> bool:
    """Say whether a letter's vector came through shared memory: then the answer's may go there too."""
    arrays = _arrays(record, _VECTOR)
    return arrays is not None and isinstance(arrays.get(_VECTOR), SharedArray)


def _arrays(record: RecordDict, name: str) -> ArrayRecord | None:
    found = record.get(name)
    return found if isinstance(found, ArrayRecord) else None


def _vector(record: RecordDict) -> NDArray[Any]:
    arrays = _arrays(record, _VECTOR)
    found = None if arrays is None else arrays.get(_VECTOR)
    if isinstance(found, SharedArray):
        return found.vector
    if found is None or found.dtype not in _KEPT or len(found.shape) != 1 or len(found.data) < 4 * found.shape[0]:
        raise InputError("its array is no flat vector of floats")
    try:
        return found.numpy()  # reads numpy's own format, with pickle refused
    except (ValueError, EOFError, TypeError, MemoryError, OverflowError) as error:
        raise InputError(f"its array can't be read: {error}") from None
