"""The courier: carries letters to clients over a Flower grid and brings the answers back.

Our own loop, because the stock one is silent about clients that fail. Every client asked is accounted for: with its
answer, or with what went wrong. Letters go out in a sliding window, so that the answers that are on their way or wait
for their turn are never more than `window`, and answers are given in the order of the letters.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event

from flwr.app import Message
from flwr.serverapp import Grid

from coreplay.engines.flower.letters import Letter
from coreplay.errors import InputError
from coreplay.federated.engine import EngineError

SOONEST, LATEST = 0.02, 0.5  # seconds between looks for answers
BEGINNING = 300.0  # seconds at least for a node's first answer: it may still be starting
QUERY = "query.coreplay"
CATEGORIES = {"train": "train", "evaluate": "evaluate"}  # by what a letter asks; all else are queries
LONGEST_REASON = 300
TRIES = 3  # times that a node is asked who it is


@dataclass(frozen=True)
class Answer:
    """What came back from a client: a letter, or the problem."""

    client: str
    letter: Letter | None = None
    problem: str = ""


@dataclass
class _Sent:
    client: str
    letter: Letter
    patience: float
    until: float


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
    window : int
        Most answers on their way at once.
    stop : Event, optional
        Set by another thread to end all waiting with an `EngineError`.
    """

    def __init__(
        self, grid: Grid, hello: Callable[[], Letter], *, timeout: float, window: int, stop: Event | None = None
    ) -> None:
        self._grid, self._hello, self.timeout, self.window = grid, hello, timeout, window
        self._stop = stop or Event()
        self.nodes: dict[str, int] = {}
        self._known: set[int] = set()
        self._failed: dict[int, int] = {}
        self._overdue: dict[str, str] = {}

    def look(self) -> Iterator[tuple[int, Answer]]:
        """Ask nodes that have come since the last look who they are; the nodes and their answers.

        A node that failed is asked again, some times; one that is fit to take part must be accepted.
        """
        present = set(self._grid.get_node_ids())
        self._known &= present  # with a registered key, a node that comes back has its old number
        self.nodes = {client: node for client, node in self.nodes.items() if node in present}
        self._overdue = {client: number for client, number in self._overdue.items() if client in self.nodes}
        self._failed = {node: count for node, count in self._failed.items() if node in present}
        fresh = sorted(node for node in present - self._known if self._failed.get(node, 0) < TRIES)
        names = {f"node {node}": node for node in fresh}
        hello = self._hello()
        patience = max(self.timeout, BEGINNING)
        for answer in self._carry(dict.fromkeys(names, hello), names, patience, strict=False):
            node = names[answer.client]
            self._failed[node] = self._failed.get(node, 0) + 1
            yield node, answer if answer.letter is None else Answer(answer.letter.client, answer.letter)

    def accept(self, client: str, node: int) -> bool:
        """Reach a client at this node from now on; say whether it was reached at another before.

        The newest counts, because a node that was killed is still listed for a minute.
        """
        before = self.nodes.get(client, node)
        self.nodes[client] = node
        self._known.add(node)
        self._overdue.pop(client, None)
        return before != node

    def carry(self, letters: Mapping[str, Letter]) -> Iterator[Answer]:
        """Carry letters to clients; one answer each, in the order of the letters."""
        yield from self._carry(letters, self.nodes, self.timeout, strict=True)

    def _carry(
        self, letters: Mapping[str, Letter], nodes: Mapping[str, int], patience: float, strict: bool
    ) -> Iterator[Answer]:
        waiting = deque(letters.items())
        order = deque(letters)
        sent: dict[str, _Sent] = {}
        found: dict[str, Answer] = {}
        pause = SOONEST
        while order:
            while waiting and len(sent) + len(found) < self.window:
                client, letter = waiting.popleft()
                problem = self._unreachable(client, nodes)
                if problem:
                    found[client] = Answer(client, None, problem)
                    continue
                kind = CATEGORIES.get(letter.act, QUERY)
                message = Message(letter.to_record(), nodes[client], kind, ttl=4 * patience + 60)
                numbers = list(self._grid.push_messages([message]))
                del message
                if numbers and numbers[0]:
                    sent[numbers[0]] = _Sent(client, letter, patience, time.monotonic() + patience)
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
                pause = min(2 * pause, LATEST)

    def _unreachable(self, client: str, nodes: Mapping[str, int]) -> str:
        if client not in nodes:
            return "is not connected"
        number = self._overdue.get(client)
        if number is None:
            return ""
        if list(self._grid.pull_messages([number])):  # it comes too late to count; but now the client is free
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
            found[it.client] = Answer(it.client, None, f"did not answer within {it.patience:g} s")
        return news


def _read(message: Message, sent: _Sent, strict: bool) -> Answer:
    if message.has_error():
        return Answer(sent.client, None, f"failed: {_short(message.error.reason)} (code {message.error.code})")
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
