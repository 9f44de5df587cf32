"""What passes between a client and the server: one contribution up and one broadcast down a round.

Every message says which run, period and round it belongs to, so that late, repeated and reordered ones are recognised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay import codec
from coreplay.errors import InputError

Vector = NDArray[np.float32]

NEVER = -1  # the round of an answer that was not given
HEADROOM = 2**14  # bytes of a contribution besides its vector: two names of 200 characters and a few whole numbers


def as_vector(value: Any) -> Vector:
    """Return a flat float32 vector."""
    vector = np.asarray(value)
    if vector.ndim != 1 or vector.dtype.kind not in "fiu":
        raise InputError(f"vector must be flat and of numbers: got shape {vector.shape} and dtype {vector.dtype}")
    return np.ascontiguousarray(vector, dtype="<f4")


@dataclass(frozen=True, eq=False)
class Contribution:
    """A client's answer of one round: by how much its share of the sum changed.

    Attributes
    ----------
    run : str
        The run that it belongs to.
    period : int
        The period that it belongs to.
    round : int
        The round that it belongs to, from 0.
    client : str
        Who sends it.
    basis : int
        The round of the client's last counted answer, from which this one is the difference; -1 if there is none.
    vector : (d,) float32 array
        G(x − x_basis), or Gx if there is no basis.

    Examples
    --------
    >>> sent = Contribution("run", 0, 1, "alice", 0, np.array([0.5, -1.0]))
    >>> received = Contribution.from_bytes(sent.to_bytes())
    >>> received.client, received.vector.tolist()
    ('alice', [0.5, -1.0])
    """

    run: str
    period: int
    round: int
    client: str
    basis: int
    vector: Vector

    def __post_init__(self) -> None:
        """Check every field: a message may come from anyone."""
        codec.check_name(self.run, "run")
        codec.check_name(self.client, "client")
        codec.check_count(self.period, "period")
        codec.check_count(self.round, "round")
        codec.check_count(self.basis, "basis", least=NEVER)
        object.__setattr__(self, "vector", as_vector(self.vector))

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return codec.pack("contribution", {name: getattr(self, name) for name in _CONTRIBUTION})

    @classmethod
    def from_bytes(cls, data: bytes, dimension: int | None = None) -> "Contribution":
        """Read a message; anything but a well-formed one, or one too long for `dimension`, is an `InputError`."""
        longest = None if dimension is None else 4 * dimension + HEADROOM
        return cls(**codec.unpack(data, "contribution", _CONTRIBUTION, longest=longest))


_CONTRIBUTION = {"run": str, "period": int, "round": int, "client": str, "basis": int, "vector": np.float32}


@dataclass(frozen=True, eq=False)
class Broadcast:
    """The server's word to all clients after a round.

    Attributes
    ----------
    run : str
        The run that it belongs to.
    period : int
        The period that it belongs to.
    round : int
        The round that it closes; clients answer it with contributions of the next.
    final : bool
        Whether clients should finish now.
    clients : int
        How many clients the sum holds.
    behind : mapping
        Clients whose last counted answer is not of this round: that round, or -1. All others were counted.
    weights : tuple of float
        For methods that mix rounds: the weight of each round's sum in `vector`.
    numbers : mapping
        What else a method tells its clients, by name.
    vector : (d,) float32 array
        What the method makes of the sums.
    """

    run: str
    period: int
    round: int
    final: bool
    clients: int
    vector: Vector
    behind: Mapping[str, int] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field: a message may come from anyone."""
        codec.check_name(self.run, "run")
        codec.check_count(self.period, "period")
        codec.check_count(self.round, "round")
        codec.check_count(self.clients, "clients", least=1)
        behind = {
            codec.check_name(c, "client"): codec.check_count(k, "behind", least=NEVER) for c, k in self.behind.items()
        }
        numbers = {
            codec.check_name(key, "number"): codec.check_finite(value, key) for key, value in self.numbers.items()
        }
        weights = tuple(codec.check_finite(weight, "weights") for weight in self.weights)
        if len(weights) not in (0, self.round + 1):
            raise InputError(f"broadcast of round {self.round} must weigh {self.round + 1} rounds: got {len(weights)}")
        vector = as_vector(self.vector)
        if not np.isfinite(vector).all():
            raise InputError(f"broadcast of round {self.round} must be finite: its vector has NaN or infinity")
        for key, value in (("behind", behind), ("numbers", numbers), ("weights", weights), ("vector", vector)):
            object.__setattr__(self, key, value)

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        fields = {name: getattr(self, name) for name in _BROADCAST}
        return codec.pack("broadcast", fields | {"weights": list(self.weights)})

    @classmethod
    def from_bytes(cls, data: bytes, dimension: int | None = None) -> "Broadcast":
        """Read a message; anything but a well-formed one, or one too long for `dimension`, is an `InputError`."""
        longest = None if dimension is None else 4 * dimension + HEADROOM + codec.LONGEST_JSON
        fields = codec.unpack(data, "broadcast", _BROADCAST, longest=longest)
        return cls(**fields | {"weights": tuple(fields["weights"])})


_BROADCAST = {
    "run": str,
    "period": int,
    "round": int,
    "final": bool,
    "clients": int,
    "behind": dict,
    "weights": list,
    "numbers": dict,
    "vector": np.float32,
}
