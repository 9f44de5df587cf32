"""What passes in a secure sum, in this order: keys, roster, shares, inbox, masked or complaint, request, reveal."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from coreplay import codec
from coreplay.errors import InputError


@dataclass(frozen=True, eq=False)
class Stamped:
    """A message of one secure sum: every one says which."""

    kind: ClassVar[str]
    run: str
    period: int
    round: int

    def __post_init__(self) -> None:
        """Check every field: a message may come from anyone."""
        codec.check_name(self.run, "run")
        codec.check_count(self.period, "period")
        codec.check_count(self.round, "round")
        for name, kind in self._types().items():
            value = getattr(self, name)
            texts = [*value, *value.values()] if kind is dict else value if kind is list else ()
            if not isinstance(value, kind) or not all(isinstance(text, str) for text in texts):
                raise InputError(f"{self.kind} has {name} that is not a {kind.__name__} of texts")

    @property
    def stamp(self) -> tuple[str, int, int]:
        """Which sum the message belongs to."""
        return self.run, self.period, self.round

    @classmethod
    def _types(cls) -> dict[str, type]:
        hints = get_type_hints(cls)
        return {f.name: get_origin(hints[f.name]) or hints[f.name] for f in fields(cls)}

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return codec.pack(self.kind, {name: getattr(self, name) for name in self._types()})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a message; anything but a well-formed one is an `InputError`."""
        return cls(**codec.unpack(data, cls.kind, cls._types()))


@dataclass(frozen=True, eq=False)
class Keys(Stamped):
    """A client's two public keys of this sum, for masks and for shares in transit (hexadecimal)."""

    kind: ClassVar[str] = "keys"
    client: str
    masks: str
    shares: str


@dataclass(frozen=True, eq=False)
class Roster(Stamped):
    """All clients' public keys, the threshold, and the sum of the clients' norm bounds."""

    kind: ClassVar[str] = "roster"
    threshold: int
    limit: float
    masks: dict[str, str]
    shares: dict[str, str]


@dataclass(frozen=True, eq=False)
class Shares(Stamped):
    """A client's secrets in shares, each sealed for one other client, and what they can be checked against.

    `commitment` is the digest of the seed of its own mask, `digests` has those of the two shares of each client.
    """

    kind: ClassVar[str] = "shares"
    client: str
    commitment: str
    sealed: dict[str, str]
    digests: dict[str, str]


@dataclass(frozen=True, eq=False)
class Inbox(Stamped):
    """The sealed shares that the others sent to one client, and the digests that they published of them."""

    kind: ClassVar[str] = "inbox"
    client: str
    sealed: dict[str, str]
    digests: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Complaint(Stamped):
    """Whose shares a client could not open, or are not those of the digests: it sends no vector."""

    kind: ClassVar[str] = "complaint"
    client: str
    accused: list[str]


@dataclass(frozen=True, eq=False)
class Masked(Stamped):
    """A client's vector in fixed point under all its masks."""

    kind: ClassVar[str] = "masked"
    client: str
    words: NDArray[np.uint32]

    def __post_init__(self) -> None:
        """Check every field: a message may come from anyone."""
        super().__post_init__()
        if self.words.ndim != 1 or self.words.dtype != np.uint32:
            raise InputError(f"words must be flat and of uint32: got {self.words.dtype}{self.words.shape}")


@dataclass(frozen=True, eq=False)
class Request(Stamped):
    """Whose vectors the server has: of these it wants the seeds of their own masks, of the others the pairwise keys."""

    kind: ClassVar[str] = "request"
    survivors: list[str]


@dataclass(frozen=True, eq=False)
class Reveal(Stamped):
    """A client's shares of the seeds of those who answered and of the keys of those who did not."""

    kind: ClassVar[str] = "reveal"
    client: str
    seeds: dict[str, str]
    keys: dict[str, str]


def unhex(value: Any, length: int, what: str) -> bytes:
    """Read hexadecimal digits of a message."""
    try:
        data = bytes.fromhex(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be hexadecimal: got {str(value)[:40]!r}") from None
    if len(data) != length:
        raise InputError(f"{what} must have {length} bytes: got {len(data)}")
    return data
