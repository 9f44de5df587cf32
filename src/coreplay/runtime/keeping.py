"""The server's side of choosing what clients keep, alone or jointly, over any engine."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from coreplay.coordination import Answer, CoordinationSpec, RoundResult, SecureSumError, run_rounds
from coreplay.coordination.messages import Broadcast
from coreplay.runtime.engine import Engine, QuorumError, Requests, refuse
from coreplay.runtime.events import Observe, Problem
from coreplay.runtime.requests import (
    Arrays,
    Contribute,
    ContributeReply,
    KeptReply,
    Request,
    SecureStep,
    Select,
    Settle,
)

MostKept = Callable[[str], int]  # how many samples a client can keep


class EngineTransport:
    """Carries a coordination over an engine; the model goes with each request to clients that may not have it."""

    def __init__(self, engine: Engine, period: int, arrays: Arrays, observe: Observe) -> None:
        self._engine, self._period, self._arrays, self._observe = engine, period, arrays, observe
        session = uuid.uuid4().hex  # tells one coordination from another, also of the same period after a resume
        self.about: dict[str, Any] = {"run": engine.run_id, "period": period, "session": session}
        self.answered: set[str] = set()
        self._missing: dict[str, str] = {}

    def contribute(
        self, clients: Sequence[str], broadcast: bytes | None, *, secure: bool, attempt: int
    ) -> Iterator[tuple[str, Answer]]:
        """Let clients answer a broadcast."""
        self._engine.discover(self._observe, self._period)
        round = 0 if broadcast is None else Broadcast.from_bytes(broadcast).round + 1
        sent: dict[str, Any] = {"arrays": self._arrays, "data": broadcast or b""}
        request = Contribute(**self.about, **sent, round=round, secure=secure, attempt=attempt)
        self._missing = {}
        for client, reply in self._ask(dict.fromkeys(clients, request)):
            self.answered.add(client)
            yield client, Answer(reply.data, reply.basis, reply.dimension)
        if not attempt:
            self._engine.check_quorum(len(clients), self._missing, f"coordination, period {self._period}")

    def step(self, step: str, round: int, messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Let clients take one step of a secure sum."""
        requests = {c: SecureStep(**self.about, round=round, step=step, data=data) for c, data in messages.items()}
        return {client: reply.data for client, reply in self._ask(requests)}

    def refuse(self, client: str, problem: str) -> None:
        """Record what is wrong with a client's answer; without a client it is about the whole sum."""
        if client:
            refuse(client, problem, self._observe, self._missing)
        else:
            self._observe(Problem(problem))

    def _ask(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, ContributeReply]]:
        for client, reply in self._engine.ask(list(requests.items()), self._observe, self._missing):
            if isinstance(reply, ContributeReply):
                yield client, reply
            else:
                self.refuse(client, "sent a reply of another kind")


def coordinate(
    engine: Engine,
    spec: CoordinationSpec,
    clients: Sequence[str],
    budgets: Mapping[str, int],
    arrays: Arrays,
    most_kept: MostKept,
    observe: Observe,
    report: Callable[[RoundResult], None],
) -> set[str]:
    """Let clients choose jointly, and each keep its choice; return those who did.

    `budgets` names those of the `clients` that take part in the exchange; the others choose alone.
    """
    transport = EngineTransport(engine, spec.period, arrays, observe)
    try:
        broadcast = run_rounds(transport, spec, budgets, report)
    except SecureSumError as error:
        raise QuorumError(str(error)) from None
    jointly, alone = (Settle(**transport.about, arrays=arrays, data=data) for data in (broadcast or b"", b""))
    requests = [(client, jointly if client in transport.answered else alone) for client in clients]
    return _kept(engine, requests, spec.period, most_kept, observe)


def select(
    engine: Engine, period: int, clients: Sequence[str], arrays: Arrays, most_kept: MostKept, observe: Observe
) -> set[str]:
    """Let each client choose alone, and keep its choice; return those who did."""
    request = Select(run=engine.run_id, period=period, arrays=arrays)
    return _kept(engine, [(client, request) for client in clients], period, most_kept, observe)


def _kept(engine: Engine, requests: Requests, period: int, most_kept: MostKept, observe: Observe) -> set[str]:
    missing, kept = dict[str, str](), dict[str, int]()
    engine.discover(observe, period)
    for client, reply in engine.ask(requests, observe, missing):
        most = most_kept(client)
        if not isinstance(reply, KeptReply) or not 0 <= reply.kept <= most:
            refuse(client, f"must say how many samples it keeps, from 0 to {most}", observe, missing)
            continue
        kept[client] = reply.kept
    engine.note_kept(period, kept)
    engine.check_quorum(len(requests), missing, f"selection, period {period}")
    return set(kept)
