"""Pools: a client's new samples and its buffer, together."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coreplay.data import Samples
from coreplay.replay import Buffer
from coreplay.replay.contents import items_of, samples_of

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClientPool:
    """What a client can train on and choose from in a period."""

    samples: Samples
    new: NDArray[np.bool_]
    seen: int  # samples offered in earlier periods

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def offered(self) -> int:
        """How many samples the client was ever offered."""
        return self.seen + int(self.new.sum())


def make_client_pool(new: Samples, buffer: Buffer) -> ClientPool:
    """Put the new samples of a period and the buffer together."""
    samples = Samples.joined([new, samples_of(buffer.items, new)]) if buffer.items else new
    return ClientPool(samples, np.arange(len(samples)) < len(new), buffer.seen)


def kept_buffer(pool: ClientPool, indices: Ints, client: str, period: int) -> Buffer:
    """Return the buffer that keeps these samples of a pool."""
    return Buffer(client, period, pool.offered, items_of(pool.samples[indices]))
