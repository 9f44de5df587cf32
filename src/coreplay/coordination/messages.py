"""Messages between clients and the server, one contribution up and one broadcast down per round, and sums of vectors.

Every message names its run, period and round, so that late, repeated and reordered ones are recognised.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from coreplay import codec
from coreplay.array_types import Floats
from coreplay.errors import InputError

Vector = NDArray[np.float32]

NEVER = -1  # the round of an answer that was not given
HEADROOM = 2**14  # bytes of a contribution besides its vector: two names of 200 characters and a few whole numbers
CHUNK = 2**16  # numbers at a time: the temporaries stay in the cache
SLACK = 1e-3  # a vector of float32 sums may be this much longer than its bound


class Stamp(NamedTuple):
    """The run, period and round that a message or a secure sum belongs to."""

    run: str
    period: int
    round: int


@dataclass(frozen=True, eq=False)
class Message:
    """A message of one run, period and round; its fields are written and read by their annotations."""

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
        G(x − x_basis), or Gx without a basis, less the client's part of the target if the method has one.

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
        for client, last in self.behind.items():
            codec.check_name(client, "client")
            codec.check_count(last, "behind", least=NEVER)
        numbers = {codec.check_name(k, "number"): codec.check_finite(value, k) for k, value in self.numbers.items()}
        weights = tuple(codec.check_finite(weight, "weights") for weight in self.weights)
        if len(weights) not in (0, self.round + 1):
            raise InputError(f"broadcast of round {self.round} must weigh {self.round + 1} rounds: got {len(weights)}")
        vector = as_vector(self.vector)
        if not np.isfinite(vector).all():
            raise InputError(f"broadcast of round {self.round} must be finite: its vector has NaN or infinity")
        for name, value in (("numbers", numbers), ("weights", weights), ("vector", vector)):
            object.__setattr__(self, name, value)


def as_vector(value: Any) -> Vector:
    """Return a flat float32 vector."""
    vector = np.asarray(value)
    if vector.ndim != 1 or vector.dtype.kind not in "fiu":
        raise InputError(f"vector must be flat and of numbers: got shape {vector.shape} and dtype {vector.dtype}")
    return np.ascontiguousarray(vector, dtype="<f4")


class Total:
    """A running sum of float32 vectors, whose entries together stay below `bound`, in 64-bit fixed point.

    Floating-point addition is not associative: the last bits of a sum would depend on who answered first, and a
    selection may depend on a last bit. Integer addition is. The rounding (about 1e-13 for a thousand clients) is far
    below that of the float32 numbers which are added.

    >>> total = Total(2, bound=10.0)
    >>> total.add(np.array([0.5, -1.25], dtype=np.float32))
    >>> total.add(np.array([0.5, 1.0], dtype=np.float32))
    >>> total.value().tolist()
    [1.0, -0.25]
    """

    def __init__(self, dimension: int, bound: float) -> None:
        self._scale = 2.0 ** min(52, int(np.floor(62 - np.log2(max(bound, 1.0)))))
        self._sum = np.zeros(dimension, dtype=np.int64)

    def add(self, vector: Vector) -> None:
        """Add one vector."""
        for chunk in chunks(vector):
            part = vector[chunk].astype(np.float64)
            part *= self._scale
            self._sum[chunk] += np.rint(part, out=part).astype(np.int64)

    def value(self) -> Vector:
        """Return the sum so far."""
        out = np.empty(len(self._sum), dtype=np.float32)
        for chunk in chunks(out):
            out[chunk] = self._sum[chunk] / self._scale
        return out


def chunks(vector: NDArray[Any]) -> Iterator[slice]:
    """Yield the slices in which a long vector is computed on, so that temporaries stay in the cache."""
    for start in range(0, len(vector), CHUNK):
        yield slice(start, start + CHUNK)


def norm(vector: NDArray[Any]) -> float:
    """Return the length of a vector, accumulated in float64; NaN or infinite if an entry is.

    >>> norm(np.float32([3, 4]))
    5.0
    """
    squares = 0.0
    for chunk in chunks(vector):
        part = vector[chunk].astype(np.float64)
        squares += float(np.square(part, out=part).sum())  # a dot product would wake BLAS threads
    return float(np.sqrt(squares))


def products(vectors: list[Vector]) -> Floats:
    """Return the inner products of all pairs of vectors, accumulated in float64.

    >>> products([np.float32([1, 2]), np.float32([0, 3])]).tolist()
    [[5.0, 6.0], [6.0, 9.0]]
    """
    out = np.zeros((len(vectors), len(vectors)))
    for chunk in chunks(vectors[0]):
        part = np.array([vector[chunk] for vector in vectors], dtype=np.float64)
        out += part @ part.T
    return out


def mixture(vectors: list[Vector], weights: Floats) -> Vector:
    """Return the weighted sum of the vectors."""
    out = np.zeros(len(vectors[0]), dtype=np.float32)
    for chunk in chunks(out):
        out[chunk] = weights @ np.array([vector[chunk] for vector in vectors], dtype=np.float64)
    return out
