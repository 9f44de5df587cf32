"""The server's loop of a coordination: contributions in, one broadcast out, for some rounds, over any transport."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from coreplay.coordination.messages import NEVER
from coreplay.coordination.secure.exchange import add_securely
from coreplay.coordination.secure.server import ImpossibleSumError
from coreplay.coordination.server import Receipt, Server
from coreplay.coordination.session import Answer
from coreplay.errors import InputError


class SecureSumError(InputError):
    """A secure sum failed, because too few clients are left or one does not keep to the protocol."""


@dataclass(frozen=True)
class CoordinationSpec:
    """What a coordination is about; the same at the server and at all clients.

    Attributes
    ----------
    run : str
        The name of the run in messages.
    period : int
        The period whose pools are chosen from.
    rounds : int
        The number of rounds.
    dimension : int
        The length of a contribution.
    method : str
        The coordination method.
    options : dict
        Options of the method.
    secure : bool
        Whether the server learns the sums of contributions only.
    tolerance : float
        Stop early when the relaxed objective fell by less than this fraction in a round.
    threshold : int, optional
        The number of clients that a secure sum needs.
    """

    run: str
    period: int
    rounds: int
    dimension: int
    method: str = "corrective"
    options: dict[str, Any] = field(default_factory=dict)
    secure: bool = False
    tolerance: float = 0.0
    threshold: int | None = None


@dataclass(frozen=True)
class RoundResult:
    """One closed round: who answered, the objectives as in `Round`, the bytes of all clients, and what was refused.

    What the clients make of the last broadcast is not in it: the server does not learn it.
    """

    round: int
    answered: int
    relaxed: float
    integer: float | None
    bytes_up: int
    bytes_down: int
    refused: list[Receipt]


class Transport(Protocol):
    """What the loop needs: requests reach clients, and answers come back from those who gave one."""

    def contribute(
        self, clients: Sequence[str], broadcast: bytes | None, *, secure: bool, attempt: int
    ) -> Iterator[tuple[str, Answer]]:
        """Let clients answer a broadcast, None being the first round."""

    def step(self, step: str, round: int, messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Let clients take one step of a secure sum."""

    def refuse(self, client: str, problem: str) -> None:
        """Record what is wrong with a client's answer, which does not count."""


def run_rounds(
    transport: Transport,
    spec: CoordinationSpec,
    budgets: Mapping[str, int],
    observe: Callable[[RoundResult], None],
) -> bytes | None:
    """Run the rounds among these clients, and return the last broadcast; None if there was none.

    Clients that get no broadcast choose alone.
    """
    if not budgets or not spec.rounds:
        return None
    about: dict[str, Any] = {"run": spec.run, "period": spec.period, "method": spec.method, "tolerance": spec.tolerance}
    server = Server(budgets, spec.dimension, spec.rounds, **about, **spec.options)
    broadcast: bytes | None = None
    while not server.done:
        gather = _gather_securely if spec.secure else _gather
        up, down = gather(transport, spec, server, broadcast)
        if set(server.counted.values()) == {NEVER}:
            return None
        broadcast = server.broadcast().to_bytes()
        latest = server.history[-1]
        refused = [receipt for receipt in server.refusals if receipt.round == latest.round]
        down += len(broadcast) * len(budgets)
        observe(RoundResult(latest.round, latest.answered, latest.relaxed, latest.integer, up, down, refused))
    return broadcast


def _gather(transport: Transport, spec: CoordinationSpec, server: Server, broadcast: bytes | None) -> tuple[int, int]:
    """Give the server every contribution of a round, and return the bytes up and down."""
    up = 0
    for client, answer in transport.contribute(list(server.budgets), broadcast, secure=False, attempt=0):
        if answer.data:
            up += len(answer.data)
            receipt = server.receive(answer.data, sender=client)
            if not receipt.counted:
                transport.refuse(client, f"sent a contribution that does not count: {receipt.reason}")
    return up, 0


def _gather_securely(
    transport: Transport, spec: CoordinationSpec, server: Server, broadcast: bytes | None
) -> tuple[int, int]:
    """Give the server the sum of a round's contributions; one client's first answer can't join after round 0."""
    round, bases = server.round, server.counted

    def keys(clients: Sequence[str], attempt: int) -> dict[str, Answer]:
        found = {}
        for client, answer in transport.contribute(clients, broadcast, secure=True, attempt=attempt):
            if not answer.data:
                continue
            if answer.basis != bases[client]:
                transport.refuse(client, "sent the difference from an answer that was not counted")
            elif answer.dimension != spec.dimension:
                transport.refuse(client, f"has a contribution of {answer.dimension} numbers: expected {spec.dimension}")
            elif round == 0 or answer.basis != NEVER:
                found[client] = answer
        return found

    able = keys(list(server.budgets), 0)
    if len(able) < 2:  # a sum of one hides nothing
        return 0, 0

    def ask(step: str, messages: Mapping[str, bytes], attempt: int) -> Mapping[str, bytes]:
        if step == "keys":
            found = keys(list(messages), attempt) if attempt else able
            return {client: found[client].data for client in messages if client in found}
        return transport.step(step, round, messages)

    try:
        found = add_securely(
            ask,
            {client: server.bound(client) for client in able},
            spec.dimension,
            run=spec.run,
            period=spec.period,
            round=round,
            threshold=spec.threshold,
            name=transport.refuse,
        )
    except ImpossibleSumError as error:
        transport.refuse("", f"secure sum of round {round} is not used: {error}")
        return 0, 0
    except InputError as error:
        raise SecureSumError(f"secure sum of period {spec.period}, round {round}: {error}") from None
    server.receive_total({client: able[client].basis for client in found.survivors}, found.total)
    return found.bytes_up, found.bytes_down
