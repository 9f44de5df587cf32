"""What a run asks of an engine: to carry messages to clients and back. No mathematics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coreplay.federated.flat import Vector
from coreplay.replay.contents import BufferStats
from coreplay.tasks import WeightedSum


class EngineError(RuntimeError):
    """The engine can't go on: clients fail, or too few are left. What is done is kept, and the run can be resumed."""


@dataclass(frozen=True)
class Update:
    """The sum over clients of (weight x change of the model), what it was summed over, and who is missing.

    A client's weight is the number of its samples, limited by `federated.max_weight_ratio`.
    """

    change: Vector
    samples: int  # the sum of the weights
    loss: WeightedSum
    missing: Mapping[str, str] = field(default_factory=dict)  # client: why


@dataclass(frozen=True)
class Evaluation:
    """The sums of a model over the test set of every period, and the clients whose test sets are not in them."""

    sums: list[WeightedSum]
    missing: Mapping[str, str] = field(default_factory=dict)  # client: why


@dataclass(frozen=True)
class SecureTotal:
    """The sum of contributions that nobody saw: whose they are (with the basis of each), and the bytes for it."""

    bases: Mapping[str, int]
    total: NDArray[np.float32]
    bytes_up: int
    bytes_down: int


class Census(Protocol):
    """Who takes part, and how much data each has: all that the server knows of it. A stream is one."""

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients, sorted."""

    @property
    def periods(self) -> int:
        """How many periods there are."""

    def counts(self, split: str) -> NDArray[np.int64]:
        """Return how many samples each client has in each period: (clients, periods)."""


Watch = Callable[[Any], None]  # told of each finished client


class Carrier(Protocol):
    """What the rounds of a coordination need: somebody who brings broadcasts to clients, and contributions back."""

    def contribute(
        self, period: int, clients: Sequence[str], values: Any, broadcast: bytes | None, watch: Watch
    ) -> Iterator[bytes]:
        """Let clients answer a broadcast (None: the first round); their contributions as they come."""

    def contribute_securely(
        self,
        period: int,
        round: int,
        bounds: Mapping[str, float],
        bases: Mapping[str, int],
        values: Any,
        broadcast: bytes | None,
        watch: Watch,
    ) -> SecureTotal | None:
        """Let clients answer, and learn only the sum; None if nobody has an answer.

        `bounds` are the longest contributions that they may send, `bases` the rounds of their last counted answers.
        """


class Engine(Carrier, Protocol):
    """Where a run runs. Calls return when enough clients have answered; the engine decides what is enough."""

    def train(self, period: int, round: int, clients: Sequence[str], values: Vector, watch: Watch) -> Update:
        """Let these clients train from the model `values`, and sum up."""

    def evaluate(self, values: Vector, watch: Watch) -> Evaluation:
        """Measure the model on the test set of every period."""

    def choose(self, period: int, clients: Sequence[str], values: Vector, watch: Watch) -> None:
        """Let each client choose alone, and keep its new buffer."""

    def settle(
        self, period: int, clients: Sequence[str], values: Vector, broadcast: bytes | None, watch: Watch
    ) -> None:
        """Let each client keep what the last broadcast makes it choose."""

    def rewind(self, period: int) -> None:
        """Go back to the buffers of the end of `period` (-1: none), before the run goes on from there."""

    def sizes(self) -> dict[str, int]:
        """Return how many samples each client's buffer holds."""

    def fingerprint(self) -> str:
        """Return a text that changes whenever a buffer does; empty where the clients' disks are their own affair."""

    def holdings(self) -> BufferStats | None:
        """Return what all buffers hold together; None where the clients' disks are their own affair."""
