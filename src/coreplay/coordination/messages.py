"""Messages between clients and the server: one contribution up and one broadcast down per round.

Every message names its run, period and round, so that late, repeated and reordered ones are recognised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from coreplay import codec
from coreplay.errors import InputError

Vector = NDArray[np.float32]

NEVER = -1  # the round of an answer that was not given
HEADROOM = 2**14  # bytes of a contribution besides its vector: two names of 200 characters and a few whole numbers


class Stamp(NamedTuple):
    """The run, period and round that a message or a secure sum belongs to."""

    run: str
    period: int
    round: int


@dataclass(frozen=True, eq=False)
class Message:
    """A message of one run, period and round; its fields are written and read by their annotations.

    Attributes
    ----------
    run : str
        Name of the run.
    period : int
        Period of the run, from 0.
    round : int
        Round of the coordination, from 0.
    """

    headroom: ClassVar[int] = HEADROOM  # bytes besides the vector
    run: str
    period: int
    round: int

    def __post_init__(self) -> None:
        """Check the fields: a message may come from anyone."""
        codec.check_name(self.run, "run")
        codec.check_count(self.period, "period")
        codec.check_count(self.round, "round")

    @classmethod
    def kind(cls) -> str:
        """Return the name of this kind of message."""
        return cls.__name__.lower()

    @property
    def stamp(self) -> Stamp:
        """The run, period and round that the message belongs to."""
        return Stamp(self.run, self.period, self.round)

    @classmethod
    @cache
    def _types(cls) -> dict[str, type]:
        """Return the types of the fields as `codec.unpack` wants them."""
        types, hints = {}, get_type_hints(cls)
        for name in (f.name for f in fields(cls)):
            origin = get_origin(hints[name]) or hints[name]
            if origin is np.ndarray:
                origin = get_args(get_args(hints[name])[1])[0]  # the dtype: a flat array of such numbers
            types[name] = {tuple: list, Mapping: dict}.get(origin, origin)
        return types

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        values = {name: getattr(self, name) for name in self._types()}
        return codec.pack(self.kind(), {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()})

    @classmethod
    def from_bytes(cls, data: bytes, dimension: int | None = None) -> Self:
        """Read a message; anything but a well-formed one, or one too long for `dimension`, is an `InputError`."""
        longest = None if dimension is None else 4 * dimension + cls.headroom
        return cls(**codec.unpack(data, cls.kind(), cls._types(), longest=longest))


def as_vector(value: Any) -> Vector:
    """Return a flat float32 vector."""
    vector = np.asarray(value)
    if vector.ndim != 1 or vector.dtype.kind not in "fiu":
        raise InputError(f"vector must be flat and of numbers: got shape {vector.shape} and dtype {vector.dtype}")
    return np.ascontiguousarray(vector, dtype="<f4")


@dataclass(frozen=True, eq=False)
class Contribution(Message):
    """A client's answer in one round: the change of its part of the sum.

    Attributes
    ----------
    client : str
        The sender.
    basis : int
        Round of the client's last counted answer, from which this one is the difference; -1 if there is none.
    vector : (d,) float32 array
        G(x − x_basis), or Gx without a basis.

    Examples
    --------
    >>> sent = Contribution("run", 0, 1, "alice", 0, np.array([0.5, -1.0]))
    >>> received = Contribution.from_bytes(sent.to_bytes())
    >>> received.client, received.vector.tolist()
    ('alice', [0.5, -1.0])
    """

    client: str
    basis: int
    vector: Vector

    def __post_init__(self) -> None:
        """Check the fields: a message may come from anyone."""
        super().__post_init__()
        codec.check_name(self.client, "client")
        codec.check_count(self.basis, "basis", least=NEVER)
        object.__setattr__(self, "vector", as_vector(self.vector))


@dataclass(frozen=True, eq=False)
class Broadcast(Message):
    """The server's message to all clients that closes a round; they answer with contributions of the next round.

    Attributes
    ----------
    final : bool
        Whether clients should finish now.
    clients : int
        Number of clients whose answers are in the sum.
    vector : (d,) float32 array
        The vector that the method computes from the sums.
    behind : mapping
        Clients whose last counted answer is of an earlier round: that round, or -1. All others were counted.
    weights : tuple of float
        For methods that mix rounds: the weight of each round's sum in `vector`.
    numbers : mapping
        Other numbers that a method sends to its clients, by name.
    """

    headroom: ClassVar[int] = HEADROOM + codec.LONGEST_JSON
    final: bool
    clients: int
    vector: Vector
    behind: Mapping[str, int] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the fields: a message may come from anyone."""
        super().__post_init__()
        codec.check_count(self.clients, "clients", least=1)
        behind = {
            codec.check_name(c, "client"): codec.check_count(k, "behind", least=NEVER) for c, k in self.behind.items()
        }
        numbers = {codec.check_name(k, "number"): codec.check_finite(value, k) for k, value in self.numbers.items()}
        weights = tuple(codec.check_finite(weight, "weights") for weight in self.weights)
        if len(weights) not in (0, self.round + 1):
            raise InputError(f"broadcast of round {self.round} must weigh {self.round + 1} rounds: got {len(weights)}")
        vector = as_vector(self.vector)
        if not np.isfinite(vector).all():
            raise InputError(f"broadcast of round {self.round} must be finite: its vector has NaN or infinity")
        for name, value in (("behind", behind), ("numbers", numbers), ("weights", weights), ("vector", vector)):
            object.__setattr__(self, name, value)
