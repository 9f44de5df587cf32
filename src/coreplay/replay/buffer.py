"""The buffer: what a client keeps after a period."""

import hashlib
from dataclasses import dataclass
from operator import index
from typing import NamedTuple

from coreplay.errors import InputError


class Item(NamedTuple):
    """One sample that is kept: its stable name, the period in which it arrived, and its bytes."""

    key: str
    period: int
    payload: bytes


@dataclass(frozen=True)
class Buffer:
    """What a client keeps after a period; `period` is -1 for a client that never chose.

    Parameters
    ----------
    client : str
        Any text: ids are never used as file names.
    period : int
        The period after which the samples were chosen.
    seen : int
        How many samples the client was ever offered.
    items : tuple of Item
        The samples, in the order in which they shall come back.

    Examples
    --------
    >>> Buffer("ann", 0, 12, (Item("17", 0, b"play jazz"),))
    Buffer(client='ann', period=0, seen=12, items=(Item(key='17', period=0, payload=b'play jazz'),))
    """

    client: str
    period: int = -1
    seen: int = 0
    items: tuple[Item, ...] = ()

    def __post_init__(self) -> None:
        whose = f"the buffer of client {self.client[:40]!r}"
        for name in ("period", "seen"):  # SQLite knows only Python's whole numbers
            object.__setattr__(self, name, index(getattr(self, name)))
        items = tuple(Item(key, index(period), payload) for key, period, payload in self.items)
        object.__setattr__(self, "items", items)
        for text in (self.client, *(item.key for item in self.items)):
            if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(f"{whose} has a name with half of a surrogate pair: {text[:40]!r}")
        if not -1 <= self.period < 2**31:
            raise InputError(f"the period of {whose} must be from -1 to 2^31 - 1: got {self.period}")
        if not len(self.items) <= self.seen < 2**63:
            raise InputError(f"seen of {whose} must be at least its {len(self.items)} samples: got {self.seen}")
        if len({item.key for item in self.items}) < len(self.items):
            raise InputError(f"{whose} holds a sample twice: keys must differ")
        for item in self.items:
            if not 0 <= item.period <= self.period:
                raise InputError(
                    f"{whose} after period {self.period} holds sample {item.key[:40]!r} of period {item.period}: "
                    f"expected 0 to {self.period}"
                )
            if not isinstance(item.payload, bytes):
                raise InputError(f"{whose} holds a payload of type {type(item.payload).__name__}: expected bytes")

    def digest(self) -> bytes:
        """Return 16 bytes that differ for different buffers, which the store compares on reading."""
        parts = [f"{self.client}\0{self.period}\0{self.seen}\0{len(self.items)}".encode()]
        for key, period, payload in self.items:
            parts += [f"{len(key)}\0{key}\0{period}\0{len(payload)}\0".encode(), payload]
        return hashlib.blake2b(b"".join(parts), digest_size=16).digest()
