"""Pools: a client's new samples and its buffer, together; and the way from samples to a buffer and back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from coreplay.data import Samples
from coreplay.errors import InputError
from coreplay.federated.engine import Holdings
from coreplay.replay import Buffer, Item, decode, encode

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClientPool:
    """What a client can train on and choose from in a period."""

    samples: Samples
    arrived: Ints  # the period in which each sample arrived
    new: NDArray[np.bool_]
    seen: int  # samples offered in earlier periods

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def offered(self) -> int:
        """How many samples the client was ever offered."""
        return self.seen + int(self.new.sum())


def make_client_pool(new: Samples, period: int, buffer: Buffer) -> ClientPool:
    """Put the new samples of a period and the buffer together."""
    samples = Samples.joined([new, samples_of(buffer.items, new.label_names, new)]) if buffer.items else new
    arrived = np.array([period] * len(new) + [item.period for item in buffer.items], dtype=np.int64)
    return ClientPool(samples, arrived, np.arange(len(samples)) < len(new), buffer.seen)


def kept_buffer(pool: ClientPool, indices: Ints, client: str, period: int) -> Buffer:
    """Return the buffer that keeps these samples of a pool."""
    return Buffer(client, period, pool.offered, items_of(pool.samples, pool.arrived, indices))


def items_of(samples: Samples, arrived: Ints, indices: Ints) -> tuple[Item, ...]:
    """Return samples in the form in which a store keeps them."""
    chosen = samples[indices]
    contents = list(chosen.content) if isinstance(chosen.content, np.ndarray) else chosen.texts
    columns = zip(chosen.ids.tolist(), chosen.labels, chosen.timestamp.tolist(), contents, strict=True)
    return tuple(
        Item(f"{number:016x}", int(when), encode({"content": content, "label": label, "timestamp": time}))
        for when, (number, label, time, content) in zip(arrived[indices], columns, strict=True)
    )


def holdings_of(buffers: Iterable[Buffer], periods: int) -> Holdings:
    """Count what buffers hold together; contents are the same when their texts or numbers are."""
    clients, arrived, contents = 0, [0] * periods, set()
    for buffer in buffers:
        clients += bool(buffer.items)
        for item in buffer.items:
            arrived[item.period] += 1
            content = decode(item.payload)["content"]
            contents.add(content if isinstance(content, str) else np.asarray(content).tobytes())
    return Holdings(clients, sum(arrived), arrived, len(contents))


def samples_of(items: Sequence[Item], label_names: tuple[str, ...], like: Samples) -> Samples:
    """Return samples from what a store kept; `like` says whether they are texts or arrays."""
    numbers = {name: k for k, name in enumerate(label_names)}
    rows: list[dict[str, Any]] = [decode(item.payload) for item in items]
    for item, row in zip(items, rows, strict=True):
        if row["label"] is not None and row["label"] not in numbers:
            raise InputError(f"buffered sample {item.key} has label {row['label']!r}, unknown in this stream")
    contents = [row["content"] for row in rows]
    content = np.stack(contents) if isinstance(like.content, np.ndarray) else pa.array(contents, pa.large_string())
    return Samples(
        content,
        np.array([int(item.key, 16) for item in items], dtype=np.uint64),
        np.array([numbers.get(row["label"], -1) for row in rows], dtype=np.int64),
        np.array([row["timestamp"] for row in rows], dtype=np.int64),
        label_names,
    )
