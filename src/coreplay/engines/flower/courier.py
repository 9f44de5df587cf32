"""The courier: carries letters to clients over a Flower grid and brings the answers back.

Our own loop, because the stock one is silent about clients that fail. Every client asked is accounted for: with its
answer, or with what went wrong. Letters go out in a sliding window, so that the answers that are on their way or wait
for their turn are never more than `max_in_flight`, and answers are given in the order of the letters.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from coreplay.engines.flower.letters import Letter, size_of
from coreplay.errors import InputError
from coreplay.federated.engine import EngineError

SOONEST, LATEST, HERE = 0.02, 0.5, 0.05  # seconds between looks for answers; the longest, and that of a simulation
BEGINNING = 300.0  # seconds at least for clients to come when a run begins: they may still be starting
QUERY = "query.coreplay"
CATEGORIES = {"train": "train", "evaluate": "evaluate"}  # by what a letter asks; all else are queries
LONGEST_REASON = 300
TRIES = 3  # times that a node is asked who it is
SMALL = 2**20  # bytes that an answer may have besides what it is known to bring


@dataclass(frozen=True)
class Answer:
    """What came back from a client: a letter, or the problem."""

    client: str
    letter: Letter | None = None
    problem: str = ""
    late: bool = False  # may still come

    @property
    def mark(self) -> str:
        """The mark of the client's files, which a hello is answered with."""
        return "" if self.letter is None else str(self.letter.facts.get("mark", ""))[:64]


@dataclass
class _Sent:
    client: str
    letter: Letter
    patience: float
    until: float
    longest: int


class Courier:
    """Knows the clients by name and the nodes that they are reached at.

    A client whose answer is overdue is left alone until that answer, or Flower's word that the node is gone, has come:
    a node does one thing at a time, and what is sent to a busy one only queues up.

    Parameters
    ----------
    grid
        Flower's.
    hello : function
        Makes the letter that asks a node who it is.
    timeout : float
        Seconds to wait for each answer.
    max_in_flight : int
        Most answers on their way at once.
    stop : Event, optional
        Set by another thread to end all waiting with an `EngineError`.
    """

    def __init__(
        self, grid: Grid, hello: Callable[[], Letter], *, timeout: float, max_in_flight: int, stop: Event | None = None
    ) -> None:
        self._grid, self._hello, self.timeout, self.max_in_flight = grid, hello, timeout, max_in_flight
        self._stop = stop or Event()
        self.simulated = isinstance(grid, InMemoryGrid)
        self._latest = HERE if self.simulated else LATEST
        self.nodes: dict[str, int] = {}
        self._known: set[int] = set()
        self._failed: dict[int, int] = {}
        self._overdue: dict[str, str] = {}
        self._marks: dict[str, str] = {}
        self._rivals: dict[int, str] = {}

    def look(self, patience: float) -> Iterator[tuple[int, Answer]]:
        """Ask nodes that have come since the last look who they are; the nodes and their answers.

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
        hello = self._hello()
        for answer in self._carry(dict.fromkeys(asked, hello), names, patience, strict=False):
            node = names[answer.client]
            if not answer.late:
                self._failed[node] = self._failed.get(node, 0) + 1
            yield node, answer if answer.letter is None else Answer(answer.letter.client, answer.letter)

    def rivalled(self, answer: Answer, node: int) -> str:
        """Return why this node may not speak for a client: another one does, with other files. Empty if it may.

        It is asked again when the other is gone. With the same files it is the client itself, which was started anew.
        """
        client, other = answer.client, self.nodes.get(answer.client, node)
        if other == node or self._marks[client] == answer.mark:
            return ""
        self._rivals[node] = client
        self._failed.pop(node, None)
        return (
            f"node {node} has its client-id, but not the files of node {other}, which is connected: give each client "
            "a client-id of its own; if it replaces the other, Flower notices within a minute that that one is gone"
        )

    def accept(self, answer: Answer, node: int) -> bool:
        """Reach a client at this node from now on; say whether it was reached at another before.

        The newest counts, because a node that was killed is still listed for a minute.
        """
        client = answer.client
        before = self.nodes.get(client, node)
        self.nodes[client], self._marks[client] = node, answer.mark
        self._known.add(node)
        self._overdue.pop(client, None)
        return before != node

    def carry(self, letters: Mapping[str, Letter], expected: int = 0) -> Iterator[Answer]:
        """Carry letters to clients; one answer each, in the order of the letters.

        An answer may bring `expected` bytes and a little more; a longer one is refused unread.
        """
        yield from self._carry(letters, self.nodes, self.timeout, strict=True, longest=expected + SMALL)

    def stopped(self, seconds: float) -> bool:
        """Wait, and say whether another thread has ended the run meanwhile."""
        return self._stop.wait(seconds)

    def _carry(
        self,
        letters: Mapping[str, Letter],
        nodes: Mapping[str, int],
        patience: float,
        strict: bool,
        longest: int = SMALL,
    ) -> Iterator[Answer]:
        waiting = deque(letters.items())
        order = deque(letters)
        sent: dict[str, _Sent] = {}
        found: dict[str, Answer] = {}
        pause = SOONEST
        while order:
            while waiting and len(sent) + len(found) < self.max_in_flight:
                client, letter = waiting.popleft()
                problem = self._unreachable(client, nodes)
                if problem:
                    found[client] = Answer(client, None, problem)
                    continue
                kind = CATEGORIES.get(letter.act, QUERY)
                message = Message(letter.to_record(shared=self.simulated), nodes[client], kind, ttl=4 * patience + 60)
                numbers = list(self._grid.push_messages([message]))
                del message
                if numbers and numbers[0]:
                    sent[numbers[0]] = _Sent(client, letter, patience, time.monotonic() + patience, longest)
                else:
                    found[client] = Answer(client, None, "is not reachable: Flower took no message for its node")
            news = self._pull(sent, found, strict)
            while order and order[0] in found:
                yield found.pop(order.popleft())
            if news:
                pause = SOONEST
            elif order:
                if self._stop.wait(pause):
                    raise EngineError("the run was stopped")
                pause = min(2 * pause, self._latest)

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

    def _pull(self, sent: dict[str, _Sent], found: dict[str, Answer], strict: bool) -> bool:
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
            found[it.client] = Answer(it.client, None, f"did not answer within {it.patience:g} s", late=True)
        return news


def _read(message: Message, sent: _Sent, strict: bool) -> Answer:
    if message.has_error():
        return Answer(sent.client, None, f"failed: {_short(message.error.reason)} (code {message.error.code})")
    size = size_of(message.content)
    if size > sent.longest:
        return Answer(sent.client, None, f"sent {size} bytes: at most {sent.longest} are possible")
    try:
        letter = Letter.from_record(message.content)
    except InputError as error:
        return Answer(sent.client, None, f"sent something else: {error}")
    if "error" in letter.facts:
        return Answer(sent.client, None, f"failed: {_short(str(letter.facts['error']))}")
    if letter.stamp != sent.letter.stamp:
        given, wanted = (f"{it.act} of period {it.period}, round {it.round}" for it in (letter, sent.letter))
        return Answer(sent.client, None, f"sent an old message: {given} instead of {wanted}")
    if strict and letter.client != sent.client:
        return Answer(sent.client, None, f"sent a message as {letter.client[:40]!r}")
    return Answer(sent.client, letter)


def _short(reason: str | None) -> str:
    """Return the last line of a reason that says something, not too long: no tracebacks in a server's log."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:LONGEST_REASON]
