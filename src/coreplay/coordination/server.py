"""The server half: receive, broadcast, done. It keeps sums, never a single client's vector.

    receive(contribution)  → whether it was counted, and if not, why
    broadcast()            → closes the round and says what all clients get
    done                   → whether that was the last one

The caller decides when to close a round: when all or enough clients have answered, or after some time.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coreplay import codec
from coreplay.coordination.messages import (
    NEVER,
    SLACK,
    Broadcast,
    Contribution,
    Total,
    Vector,
    norm,
    products,
)
from coreplay.coordination.method import Method, make_method
from coreplay.errors import InputError
from coreplay.validation import whole_number


@dataclass(frozen=True)
class Receipt:
    """Whether a contribution was counted, and if not, why. `refused`: no honest client would have sent it.

    `round` is that of the contribution; of a refused one, the round in which it came.
    """

    client: str
    round: int
    counted: bool
    reason: str = ""
    refused: bool = False


@dataclass(frozen=True)
class RoundResult:
    """One closed round: the number of answers, and the objectives ‖Σ G_m x_m‖² that the server knows from the sum.

    With target "mean" objectives are squared distances to the target.
    `relaxed` is that of the point x that the method has reached (alternating: the sum itself; corrective: the best
    mixture of the rounds' sums), `integer` that of the answers if they are selections. The bytes are those of all
    clients together. It does not have the replies to the last broadcast: the server does not learn them.
    """

    round: int
    answered: int
    relaxed: float
    integer: float | None
    refused: list[Receipt] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0


class Server:
    """The server's part in coordinating one period.

    Parameters
    ----------
    budgets : mapping
        Budget of each client that takes part, by name, which limits the norm of its contributions.
    dimension : int
        Length of a contribution.
    rounds : int
        Number of rounds.
    run : str
        Name of the run, as at the clients.
    period : int
        Period of the run.
    method : str or Method
        Coordination method, as at the clients.
    **options
        Options of the method, if it is given by name.

    Examples
    --------
    >>> from coreplay.coordination import Client
    >>> clients = [Client(name, np.eye(4) + shift, 2, run="demo") for shift, name in enumerate("ab")]
    >>> server = Server({"a": 2, "b": 2}, dimension=4, rounds=1, run="demo")
    >>> [server.receive(client.begin()).counted for client in clients]
    [True, True]
    >>> last = server.broadcast()
    >>> server.done, [len(client.finish(last)) for client in clients]
    (True, [2, 2])
    """

    def __init__(
        self,
        budgets: Mapping[str, int],
        dimension: int,
        rounds: int,
        *,
        run: str,
        period: int = 0,
        method: str | Method = "corrective",
        **options: Any,
    ) -> None:
        if not budgets:
            raise InputError("budgets is empty: a server needs at least one client")
        self.budgets = {codec.check_name(c, "client"): whole_number(n, "budget", least=1) for c, n in budgets.items()}
        self.dimension = whole_number(dimension, "dimension", least=1)
        self.rounds = whole_number(rounds, "rounds", least=1)
        self.run, self.period = codec.check_name(run, "run"), codec.check_count(period, "period")
        self.method = make_method(method, **options)
        self.round = 0
        self.history: list[RoundResult] = []
        self.refusals: list[Receipt] = []
        self.counted = dict.fromkeys(self.budgets, NEVER)  # the round of each client's last counted answer
        self._bound = 2.0 * (self.rounds + 1) * sum(self.budgets.values()) * (1 + SLACK)
        self._total = Total(self.dimension, self._bound)
        self._newcomers: Total | None = None
        self._sums: list[Vector] = []
        self._broadcast: Broadcast | None = None

    @property
    def done(self) -> bool:
        """Whether the last broadcast was the final one."""
        return self._broadcast is not None and self._broadcast.final

    def receive(self, message: Contribution | bytes, sender: str = "") -> Receipt:
        """Add a contribution to the sum, or return why not; a bad one is refused, and changes nothing.

        `sender` is the client that the transport got it from, if known: a contribution in another name is refused.
        """
        if not isinstance(message, Contribution):
            try:
                message = Contribution.from_bytes(message, self.dimension)
            except InputError as error:
                return self._refuse(sender, str(error))
        if sender and message.client != sender:
            return self._refuse(sender, f"it is a contribution as {message.client[:40]!r}")
        name, round = message.client, message.round
        if (message.run, message.period) != (self.run, self.period):
            return Receipt(name, round, False, f"of another run or period: {message.run!r}, {message.period}")
        if name not in self.counted:
            return self._refuse(name, f"client {name!r} is not in this run")
        if round < self.round or self.done:
            return Receipt(name, round, False, f"late: round {round} is closed")
        if round > self.round:
            return self._refuse(name, f"round {round} has not begun: this is round {self.round}")
        if self.counted[name] == round:
            return Receipt(name, round, False, "repeated: this round's answer is already counted")
        problem = self._problem(message)
        if problem:
            return self._refuse(name, f"contribution of client {name!r} {problem}")
        self._count(message.vector, [name])
        return Receipt(name, round, True)

    def receive_total(self, clients: Collection[str], vector: Vector) -> None:
        """Add a secure sum of this round's contributions of several clients."""
        for name in clients:
            last = self.counted.get(name)
            if last is None or last == self.round or (self.round and last == NEVER):
                raise InputError(
                    f"client {name!r} cannot be in this sum of round {self.round}: its last counted answer is {last}, "
                    "and a first answer can join in round 0 only"
                )
        if len(vector) != self.dimension or not np.isfinite(vector).all():
            raise InputError(f"sum must have {self.dimension} finite numbers: got {len(vector)}")
        self._count(vector, clients)

    def bound(self, client: str) -> float:
        """Return the largest norm of the client's next contribution."""
        return self.method.max_norm(self.budgets[client], self.counted[client])

    def broadcast(self) -> Broadcast:
        """Close the round and return the message to all clients; when done, the final one again."""
        if self._broadcast is not None and self._broadcast.final:
            return self._broadcast
        clients = sum(last != NEVER for last in self.counted.values())
        if not clients:
            raise InputError(f"no client has answered in round {self.round}: nothing to broadcast")
        self._close()
        step = self.method.server_step(self._sums, clients, self._broadcast)
        integer = float(products(self._sums[-1:])[0, 0]) if self.method.returns_selections else None
        answered = sum(last == self.round for last in self.counted.values())
        refused = [receipt for receipt in self.refusals if receipt.round == self.round]
        self.history.append(RoundResult(self.round, answered, step.relaxed, integer, refused))
        behind = {name: last for name, last in sorted(self.counted.items()) if last != self.round}
        about = (self.run, self.period, self.round, self.round + 1 == self.rounds, clients)
        self._broadcast = Broadcast(*about, step.vector, behind, step.weights, step.numbers)
        self.round += 1
        return self._broadcast

    def _problem(self, message: Contribution) -> str:
        """Return what is wrong with a contribution; empty if nothing is."""
        last = self.counted[message.client]
        if message.basis != last:
            return f"is the difference from its answer of round {message.basis}: the last counted one is of {last}"
        if len(message.vector) != self.dimension:
            return f"has {len(message.vector)} numbers: expected {self.dimension}"
        if not np.isfinite(message.vector).all():
            return "has NaN or infinity"
        length, bound = norm(message.vector), self.bound(message.client)
        if length > bound * (1 + SLACK):
            return f"has norm {length:.6g}: at most {bound:g} is possible"
        return ""

    def _refuse(self, client: str, reason: str) -> Receipt:
        receipt = Receipt(client, self.round, False, reason, refused=True)
        self.refusals.append(receipt)
        return receipt

    def _count(self, vector: Vector, clients: Collection[str]) -> None:
        self._total.add(vector)
        if self.round and self.method.needs_all_rounds and any(self.counted[name] == NEVER for name in clients):
            if self._newcomers is None:
                self._newcomers = Total(self.dimension, self._bound)
            self._newcomers.add(vector)
        for name in clients:
            self.counted[name] = self.round

    def _close(self) -> None:
        """Add the round's sum to those kept; a client's first answer counts for the rounds before it as well.

        Otherwise the sums of early rounds would lack those who joined later, and seem smaller.
        """
        if self._newcomers is not None:
            joined = self._newcomers.value()
            self._sums = [vector + joined for vector in self._sums]
            self._newcomers = None
        latest = self._total.value()
        self._sums = [*self._sums, latest] if self.method.needs_all_rounds else [latest]
