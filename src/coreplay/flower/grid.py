"""The engine over a Flower grid: it brings requests to clients and replies back.

This is our own loop, because Flower's does not say which clients failed. Every client asked is accounted for: with its
reply, or with what went wrong. Requests go out in a sliding window, so that at most `max_in_flight` replies are on
their way or wait for their turn, and replies are returned in the order of the requests.
"""

import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from coreplay import codec
from coreplay.errors import InputError
from coreplay.flower.messages import from_record, size_of, to_record
from coreplay.runtime.engine import Engine, EngineError, refuse
from coreplay.runtime.events import Answered, Observe, Problem
from coreplay.runtime.requests import Contribute, Failed, Reply, Request, SecureStep, Settle

SHORTEST_WAIT, LONGEST_WAIT, SIMULATED_WAIT = 0.02, 0.5, 0.05  # seconds between two polls for replies
POLL = 0.5  # seconds between two looks for clients at the start
START_TIMEOUT = 300.0  # seconds at least for clients to join when a run begins: they may still be starting
QUERY = "query.coreplay"
CATEGORIES = {"train": "train", "evaluate": "evaluate"}  # Flower's, by the kind of request; all else are queries
LONGEST_REASON = 300
TRIES = 3  # times that a node is asked who it is
SMALL = 2**20  # bytes that an answer may have besides what it is known to bring
PER_PEER = 2**13  # bytes about one other client in a message of a secure sum: its name in JSON, and shares
LARGEST_COUNT = 2**40


@dataclass(frozen=True)
class Outcome:
    """What came back for a request: a reply, or the problem. A late one may still come."""

    client: str
    node: int
    reply: Reply | None = None
    problem: str = ""
    late: bool = False


@dataclass(frozen=True)
class _Sent:
    client: str
    node: int
    request: Request
    longest: int
    until: float


class GridEngine(Engine):
    """What runs and other people's apps have in common: clients join, and are asked over a grid.

    A client whose reply is overdue gets no request until that reply has come, or Flower says that the node is gone: a
    node does one thing at a time, and what is sent to a busy one only queues up. The model of a coordination is sent to
    each client once: its later requests come without it.
    A thread that sets `stop` ends all waiting with an `EngineError`.
    """

    trusted = False

    def __init__(
        self,
        grid: Grid,
        run_id: str,
        *,
        quorum: float,
        timeout: float,
        max_in_flight: int,
        dimension: int = 0,
        stop: Event | None = None,
    ) -> None:
        super().__init__()
        self.run_id, self.quorum, self.dimension = run_id, quorum, dimension
        self.timeout, self.join_timeout = timeout, max(timeout, START_TIMEOUT)
        self.nodes: dict[str, int] = {}  # where each client is reached
        self._grid, self._max_in_flight, self._stop = grid, max_in_flight, stop or Event()
        self.simulated = isinstance(grid, InMemoryGrid)
        self._accepted: set[int] = set()
        self._tries: Counter[int] = Counter()
        self._overdue: dict[int, str] = {}  # the message that a node is busy with
        self._state_ids: dict[str, str] = {}
        self._rivals: dict[int, str] = {}  # nodes that claim a client of another node
        self._session, self._informed = "", set[str]()  # who has the model of this coordination

    @abstractmethod
    def join_request(self, period: int) -> Request:
        """Return the request that asks a node to join in a period."""

    @abstractmethod
    def register(self, client: str, reply: Reply) -> str:
        """Take in what a client joined with; return what is wrong with it."""

    def discover(self, observe: Observe, period: int) -> dict[str, str]:
        """Get to know clients that have joined or come back; return those that can't take part, and why.

        A node that failed is asked again, some times; one that did not answer in time is asked again when it has. Of
        two nodes with a client's files the newest counts, because one that was killed is still listed for a minute.
        """
        present = set(self._grid.get_node_ids())
        self._accepted &= present  # with a registered key, a node that comes back has its old number
        self.nodes = {client: node for client, node in self.nodes.items() if node in present}
        self._overdue = {node: number for node, number in self._overdue.items() if node in present}
        self._tries = Counter({node: count for node, count in self._tries.items() if node in present})
        self._rivals = {n: client for n, client in self._rivals.items() if n in present and client in self.nodes}
        new = sorted(node for node in present - self._accepted - self._rivals.keys() if self._tries[node] < TRIES)
        join, failed = self.join_request(period), {}
        asked = [(f"node {node}", node, join, 0) for node in new if not self._unreachable(node)]
        for found in self._carry(asked, self.join_timeout):
            self._tries[found.node] += not found.late
            client = found.client if found.reply is None else found.reply.client
            problem = found.problem or self._unfit(found)
            if problem:
                if client not in self.nodes:
                    failed[client[:40]] = problem
                how = "is not there yet" if found.late else "can't take part"
                observe(Problem(f"client {client[:40]!r} {how}: {problem}"))
                continue
            if self.nodes.get(client, found.node) != found.node:
                observe(Problem(f"client {client!r} is reached at another node now"))
            self.nodes[client], self._state_ids[client] = found.node, _state_id(found.reply)
            self._accepted.add(found.node)
            self._informed.discard(client)
        return failed

    def _unfit(self, found: Outcome) -> str:
        """Return why a node can't take part: a name or reply that is not valid, or another node has its client.

        With the same files it is the client itself, which was restarted; else it is asked again when the other is gone.
        """
        assert found.reply is not None, "an outcome without a problem has a reply"
        client = found.reply.client
        try:
            codec.check_name(client, "client")
        except InputError as error:
            return str(error)
        other = self.nodes.get(client, found.node)
        if other != found.node and self._state_ids[client] != _state_id(found.reply):
            self._rivals[found.node] = client
            del self._tries[found.node]
            return (
                f"node {found.node} has its client-id, but not the files of node {other}, which is connected: give "
                "each client a client-id of its own; if it replaces the other, Flower notices within a minute that "
                "that one is gone"
            )
        return self.register(client, found.reply)

    def pause(self) -> None:
        """Wait a moment before the next look for clients; `EngineError` if another thread has ended the run."""
        if self._stop.wait(POLL):
            raise EngineError("the run was stopped")

    def ask(
        self, requests: Sequence[tuple[str, Request]], observe: Observe, missing: dict[str, str]
    ) -> Iterator[tuple[str, Reply]]:
        """Bring requests to clients over the grid."""
        first = requests[0][1] if requests else None
        if isinstance(first, Contribute | Settle) and first.session != self._session:
            self._session, self._informed = first.session, set()
        sent = []
        for client, request in requests:
            known = isinstance(request, Contribute | SecureStep | Settle) and client in self._informed
            given = request.without_arrays if known else request
            sent.append((client, self.nodes.get(client), given, self.expected_bytes(given, len(requests))))
        for found in self._carry(sent, self.timeout):
            if found.reply is None:
                refuse(found.client, found.problem, observe, missing)
            elif found.reply.client != found.client:
                refuse(found.client, f"sent a reply as {found.reply.client[:40]!r}", observe, missing)
            else:
                observe(Answered(found.client))
                if isinstance(first, Contribute):
                    self._informed.add(found.client)
                yield found.client, found.reply
            del found  # may be as large as the model: not to be kept while waiting for the next one

    def expected_bytes(self, request: Request, clients: int) -> int:
        """Return how many bytes a reply may bring."""
        if isinstance(request, Contribute):
            return 0 if request.secure else 4 * self.dimension
        if isinstance(request, SecureStep):
            return 4 * self.dimension if request.step == "mask" else PER_PEER * clients
        return 0

    def rewind(self, period: int) -> None:
        """Nothing is left to do: every client rewinds when it joins."""

    def _carry(self, requests: Sequence[tuple[str, int | None, Request, int]], timeout: float) -> Iterator[Outcome]:
        """Bring requests to nodes; return one outcome per request, in the order of the requests.

        A request comes with the name of its client, the node, and how many bytes the reply may bring; a reply that is
        much longer is refused unread.
        """
        waiting, order = deque(requests), deque(client for client, *_ in requests)
        sent: dict[str, _Sent] = {}
        found: dict[str, Outcome] = {}
        wait = SHORTEST_WAIT
        while order:
            while waiting and len(sent) + len(found) < self._max_in_flight:
                client, node, request, expected = waiting.popleft()
                problem = self._unreachable(node)
                if problem or node is None:
                    found[client] = Outcome(client, node or 0, None, problem)
                    continue
                record = to_record(request, shared=self.simulated)
                kind = CATEGORIES.get(request.kind, QUERY)
                message = FlowerMessage(record, node, kind, ttl=4 * timeout + 60)
                number = next(iter(self._grid.push_messages([message])), "")
                del record, message
                if number:
                    sent[number] = _Sent(client, node, request, expected + SMALL, time.monotonic() + timeout)
                else:
                    problem = "is not reachable: Flower took no message for its node"
                    found[client] = Outcome(client, node, None, problem)
            arrived = {
                number: _read(message, sent[number])
                for message in (self._grid.pull_messages(list(sent)) if sent else ())
                if (number := message.metadata.reply_to_message_id) in sent
            }
            now, problem = time.monotonic(), f"did not answer within {timeout:g} s"
            for number, it in sent.items():
                if number not in arrived and it.until < now:
                    self._overdue[it.node] = number
                    arrived[number] = Outcome(it.client, it.node, None, problem, late=True)
            sent = {number: it for number, it in sent.items() if number not in arrived}
            found |= {outcome.client: outcome for outcome in arrived.values()}
            idle = not arrived
            del arrived  # replies may be as large as the model: not to be kept while waiting for the next ones
            while order and order[0] in found:
                yield found.pop(order.popleft())
            if idle and order and self._stop.wait(wait):
                raise EngineError("the run was stopped")
            wait = min(2 * wait, SIMULATED_WAIT if self.simulated else LONGEST_WAIT) if idle else SHORTEST_WAIT

    def _unreachable(self, node: int | None) -> str:
        if node is None:
            return "is not connected"
        if node not in self._overdue:
            return ""
        try:
            free = bool(list(self._grid.pull_messages([self._overdue[node]])))  # too late to count, but it has come
        except KeyError:  # the simulation's grid, of a message that it has given up
            free = True
        if not free:
            return "is still busy with an earlier message"
        del self._overdue[node]
        return ""


def _state_id(reply: Reply | None) -> str:
    """Return the id of the client's files, which a node sends when it joins."""
    return str(getattr(reply, "state_id", ""))[:64]


def _read(message: FlowerMessage, sent: _Sent) -> Outcome:
    """Read what came back; refuse what is too long, no reply, or a reply to another request."""

    def refused(problem: str) -> Outcome:
        return Outcome(sent.client, sent.node, None, problem)

    if message.has_error():
        return refused(f"failed: {_short(message.error.reason)} (code {message.error.code})")
    size = size_of(message.content)
    if size > sent.longest:
        return refused(f"sent {size} bytes: at most {sent.longest} are possible")
    try:
        reply = from_record(message.content)
    except InputError as error:
        return refused(f"sent something else: {error}")
    if not isinstance(reply, Reply):
        return refused(f"sent something else: a {reply.kind} request")
    if reply.stamp() != sent.request.stamp():
        given, wanted = (f"{to} of period {t}, round {k}" for to, _, t, k in (reply.stamp(), sent.request.stamp()))
        return refused(f"sent an old reply: {given} instead of {wanted}")
    if isinstance(reply, Failed):
        return refused(f"failed: {_short(reply.error)}")
    return Outcome(sent.client, sent.node, reply)


def _short(reason: str | None) -> str:
    """Return the last line of a reason that says something, not too long: no tracebacks in a server's log."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:LONGEST_REASON]
