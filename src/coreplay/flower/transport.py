"""Brings requests to clients over a Flower grid, and replies back.

This is our own loop, because Flower's does not say which clients failed. Every client asked is accounted for: with its
reply, or with what went wrong. Requests go out in a sliding window, so that at most `max_in_flight` replies are on
their way or wait for their turn, and replies are returned in the order of the requests.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from coreplay.errors import InputError
from coreplay.flower.messages import from_record, size_of, to_record
from coreplay.runtime.engine import EngineError
from coreplay.runtime.requests import Failed, Reply, Request

SHORTEST_WAIT, LONGEST_WAIT, SIMULATED_WAIT = 0.02, 0.5, 0.05  # seconds between two polls for replies
START_TIMEOUT = 300.0  # seconds at least for clients to join when a run begins: they may still be starting
QUERY = "query.coreplay"
CATEGORIES = {"train": "train", "evaluate": "evaluate"}  # Flower's, by the kind of request; all else are queries
LONGEST_REASON = 300
TRIES = 3  # times that a node is asked who it is
SMALL = 2**20  # bytes that an answer may have besides what it is known to bring


@dataclass(frozen=True)
class Outcome:
    """What came back from a client: a reply, or the problem."""

    client: str
    reply: Reply | None = None
    problem: str = ""
    late: bool = False  # may still come

    @property
    def state_id(self) -> str:
        """The id of the client's files, which a node sends when it joins."""
        return str(getattr(self.reply, "state_id", ""))[:64]


@dataclass
class _Sent:
    client: str
    request: Request
    timeout: float
    until: float
    longest: int


class GridTransport:
    """Knows the clients by name and the nodes that they are reached at.

    A client whose reply is overdue gets no request until that reply has come, or Flower says that the node is gone: a
    node does one thing at a time, and what is sent to a busy one only queues up.

    Parameters
    ----------
    grid
        The grid that Flower gives to the server app.
    join : function
        Makes the request that asks a node to join.
    timeout : float
        Seconds to wait for each reply.
    max_in_flight : int
        How many requests may be on their way at once.
    stop : Event, optional
        Set by another thread to end all waiting with an `EngineError`.
    """

    def __init__(
        self,
        grid: Grid,
        join: Callable[[], Request],
        *,
        timeout: float,
        max_in_flight: int,
        stop: Event | None = None,
    ) -> None:
        self._grid, self._join, self.timeout, self.max_in_flight = grid, join, timeout, max_in_flight
        self._stop = stop or Event()
        self.simulated = isinstance(grid, InMemoryGrid)
        self._longest_wait = SIMULATED_WAIT if self.simulated else LONGEST_WAIT
        self.nodes: dict[str, int] = {}
        self._known: set[int] = set()
        self._failed: dict[int, int] = {}
        self._overdue: dict[str, str] = {}
        self._state_ids: dict[str, str] = {}
        self._rivals: dict[int, str] = {}

    def discover(self, timeout: float) -> Iterator[tuple[int, Outcome]]:
        """Ask nodes that have come since the last time to join; return the nodes and what came back.

        A node that failed is asked again, some times; one that did not answer in time is asked again when it has. One
        that is fit to take part must be accepted.
        """
        present = set(self._grid.get_node_ids())
        self._known &= present  # with a registered key, a node that comes back has its old number
        self.nodes = {client: node for client, node in self.nodes.items() if node in present}
        names = {f"node {node}": node for node in present}
        self._overdue = {who: number for who, number in self._overdue.items() if who in self.nodes or who in names}
        self._failed = {node: count for node, count in self._failed.items() if node in present}
        self._rivals = {n: client for n, client in self._rivals.items() if n in present and client in self.nodes}
        unknown = present - self._known - self._rivals.keys()
        fresh = sorted(node for node in unknown if self._failed.get(node, 0) < TRIES)
        asked = [name for name in map("node {}".format, fresh) if not self._unreachable(name, names)]
        join = self._join()
        for found in self.carry([(name, join, 0) for name in asked], names, timeout):
            node = names[found.client]
            if not found.late:
                self._failed[node] = self._failed.get(node, 0) + 1
            yield node, found if found.reply is None else Outcome(found.reply.client, found.reply)

    def identity_conflict(self, found: Outcome, node: int) -> str:
        """Return why this node may not speak for a client: another one does, with other files. Empty if it may.

        It is asked again when the other is gone. With the same files it is the client itself, which was restarted.
        """
        client, other = found.client, self.nodes.get(found.client, node)
        if other == node or self._state_ids[client] == found.state_id:
            return ""
        self._rivals[node] = client
        self._failed.pop(node, None)
        return (
            f"node {node} has its client-id, but not the files of node {other}, which is connected: give each client "
            "a client-id of its own; if it replaces the other, Flower notices within a minute that that one is gone"
        )

    def accept(self, found: Outcome, node: int) -> bool:
        """Reach a client at this node from now on; return whether it was reached at another before.

        The newest counts, because a node that was killed is still listed for a minute.
        """
        client = found.client
        before = self.nodes.get(client, node)
        self.nodes[client], self._state_ids[client] = node, found.state_id
        self._known.add(node)
        self._overdue.pop(client, None)
        return before != node

    def stopped(self, seconds: float) -> bool:
        """Wait, and say whether another thread has ended the run meanwhile."""
        return self._stop.wait(seconds)

    def carry(
        self,
        requests: Sequence[tuple[str, Request, int]],
        joining: Mapping[str, int] | None = None,
        timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Bring requests to clients; return one outcome per request, in the order of the requests.

        With each request goes how many bytes the reply may bring; a reply that is much longer is refused unread.
        `joining` are nodes whose clients are not known yet, by the names under which they are asked.
        """
        nodes, timeout, strict = joining or self.nodes, timeout or self.timeout, joining is None
        waiting = deque(requests)
        order = deque(client for client, *_ in requests)
        sent: dict[str, _Sent] = {}
        found: dict[str, Outcome] = {}
        pause = SHORTEST_WAIT
        while order:
            while waiting and len(sent) + len(found) < self.max_in_flight:
                client, request, expected = waiting.popleft()
                problem = self._unreachable(client, nodes)
                if problem:
                    found[client] = Outcome(client, None, problem)
                    continue
                kind = CATEGORIES.get(request.kind, QUERY)
                record = to_record(request, shared=self.simulated)
                message = FlowerMessage(record, nodes[client], kind, ttl=4 * timeout + 60)
                numbers = list(self._grid.push_messages([message]))
                del message, record
                if numbers and numbers[0]:
                    until = time.monotonic() + timeout
                    sent[numbers[0]] = _Sent(client, request, timeout, until, expected + SMALL)
                else:
                    found[client] = Outcome(client, None, "is not reachable: Flower took no message for its node")
            news = self._pull(sent, found, strict)
            while order and order[0] in found:
                yield found.pop(order.popleft())
            if news:
                pause = SHORTEST_WAIT
            elif order:
                if self._stop.wait(pause):
                    raise EngineError("the run was stopped")
                pause = min(2 * pause, self._longest_wait)

    def _unreachable(self, client: str, nodes: Mapping[str, int]) -> str:
        if client not in nodes:
            return "is not connected"
        number = self._overdue.get(client)
        if number is None:
            return ""
        try:
            free = bool(list(self._grid.pull_messages([number])))  # it comes too late to count; but now it has come
        except KeyError:  # the simulation's grid, of a message that it has given up
            free = True
        if free:
            del self._overdue[client]
            return ""
        return "is still busy with an earlier message"

    def _pull(self, sent: dict[str, _Sent], found: dict[str, Outcome], strict: bool) -> bool:
        """Take in what has arrived, and give up on what is overdue."""
        news = False
        for message in self._grid.pull_messages(list(sent)) if sent else ():
            number = message.metadata.reply_to_message_id
            if number in sent:
                news = True
                it = sent.pop(number)
                found[it.client] = _read(message, it, strict)
        now = time.monotonic()
        for number in [number for number, it in sent.items() if it.until < now]:
            news = True
            it = sent.pop(number)
            self._overdue[it.client] = number
            found[it.client] = Outcome(it.client, None, f"did not answer within {it.timeout:g} s", late=True)
        return news


def _read(message: FlowerMessage, sent: _Sent, strict: bool) -> Outcome:
    if message.has_error():
        return Outcome(sent.client, None, f"failed: {_short(message.error.reason)} (code {message.error.code})")
    size = size_of(message.content)
    if size > sent.longest:
        return Outcome(sent.client, None, f"sent {size} bytes: at most {sent.longest} are possible")
    try:
        reply = from_record(message.content)
    except InputError as error:
        return Outcome(sent.client, None, f"sent something else: {error}")
    if not isinstance(reply, Reply):
        return Outcome(sent.client, None, f"sent something else: a {reply.kind} request")
    if reply.stamp() != sent.request.stamp():
        given, wanted = (
            "{} of period {}, round {}".format(*(s[0], *s[2:])) for s in (reply.stamp(), sent.request.stamp())
        )
        return Outcome(sent.client, None, f"sent an old reply: {given} instead of {wanted}")
    if isinstance(reply, Failed):
        return Outcome(sent.client, None, f"failed: {_short(reply.error)}")
    if strict and reply.client != sent.client:
        return Outcome(sent.client, None, f"sent a reply as {reply.client[:40]!r}")
    return Outcome(sent.client, reply)


def _short(reason: str | None) -> str:
    """Return the last line of a reason that says something, not too long: no tracebacks in a server's log."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:LONGEST_REASON]
