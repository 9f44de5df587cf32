"""From samples to a buffer and back, and what buffers hold together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from coreplay.codec import decode, encode
from coreplay.data import Samples
from coreplay.data.samples import joined_column
from coreplay.errors import InputError
from coreplay.replay.buffer import Buffer, Item

_EXTRA = "extra:"
_FIELDS = frozenset(("content", "label", "timestamp"))


@dataclass(frozen=True)
class BufferStats:
    """What the buffers of all clients hold together."""

    clients: int  # with at least one sample
    kept: int
    arrived: list[int]  # samples by period of arrival
    distinct: int  # different contents


def buffer_stats(buffers: Iterable[Buffer], periods: int) -> BufferStats:
    """Count what buffers hold together; contents are the same when their texts or numbers are."""
    clients, arrived, contents = 0, [0] * periods, set()
    for buffer in buffers:
        clients += bool(buffer.items)
        for item in buffer.items:
            arrived[item.period] += 1
            content = decode(item.payload)["content"]
            contents.add(content if isinstance(content, str) else np.asarray(content).tobytes())
    return BufferStats(clients, sum(arrived), arrived, len(contents))


def items_of(samples: Samples) -> tuple[Item, ...]:
    """Return samples in the form in which a store keeps them; weights of 1 take no bytes."""
    contents = list(samples.content) if isinstance(samples.content, np.ndarray) else samples.texts
    columns = (samples.ids, samples.arrived, samples.timestamp, samples.weight)
    items = []
    for k, (content, label, number, period, time, weight) in enumerate(
        zip(contents, samples.labels, *(column.tolist() for column in columns), strict=True)
    ):
        fields: dict[str, Any] = {"content": content, "label": label, "timestamp": time}
        if weight != 1:
            fields["weight"] = weight
        fields |= {_EXTRA + name: np.asarray(column[k]) for name, column in samples.extras.items()}
        items.append(Item(f"{number:016x}", period, encode(fields)))
    return tuple(items)


def samples_of(items: Sequence[Item], like: Samples) -> Samples:
    """Return the samples that a store kept; `like` says which labels there are, and if they are texts or arrays."""
    if not items:
        return like[:0]
    numbers: dict[str | None, int] = {name: k for k, name in enumerate(like.label_names)} | {None: -1}
    rows = [decode(item.payload) for item in items]
    for item, row in zip(items, rows, strict=True):
        if not row.keys() >= _FIELDS:
            raise InputError(f"buffered sample {item.key} has no {sorted(_FIELDS - row.keys())}: it is of another app")
        if row["label"] not in numbers:
            raise InputError(f"buffered sample {item.key} has label {row['label']!r}, unknown in this stream")
    contents = [row["content"] for row in rows]
    extras = {}
    for name in dict.fromkeys(name for row in rows for name in row if name.startswith(_EXTRA)):
        parts = [row[name][None] if name in row else None for row in rows]
        extras[name.removeprefix(_EXTRA)] = joined_column(name.removeprefix(_EXTRA), parts, [1] * len(rows))
    return Samples(
        np.stack(contents) if isinstance(like.content, np.ndarray) else pa.array(contents, pa.large_string()),
        np.array([int(item.key, 16) for item in items], dtype=np.uint64),
        np.array([numbers[row["label"]] for row in rows], dtype=np.int64),
        np.array([row["timestamp"] for row in rows], dtype=np.int64),
        like.label_names,
        np.array([item.period for item in items], dtype=np.int64),
        np.array([row.get("weight", 1.0) for row in rows], dtype=np.float32),
        extras,
    )
