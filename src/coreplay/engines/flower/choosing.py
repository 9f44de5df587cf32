"""The server's half of coordinated replay for a Flower app of your own: `next_period` and `choose_jointly`.

The clients count the periods: each knows the last one that it chose after, so an app that is started again can ask.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from threading import Event
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from coreplay.engines.flower.courier import Answer, Courier
from coreplay.engines.flower.letters import Letter
from coreplay.engines.flower.rounds import Rounds, is_whole
from coreplay.errors import InputError
from coreplay.federated.engine import EngineError, Watch
from coreplay.federated.joint import Terms, Told, negotiate

LOOK = 0.5  # seconds between looks for clients
LARGEST = 10  # times the median of the clients' budgets


@dataclass(frozen=True)
class Choice:
    """How a phase of choosing went: rounds, what clients keep now, and who was missing or refused, and why."""

    rounds: list[Told] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def next_period(
    grid: Grid,
    *,
    clients: int = 1,
    run: str = "app",
    quorum: float = 0.5,
    timeout: float = 600.0,
    max_in_flight: int = 4,
    stop: Event | None = None,
) -> int:
    """Ask the clients which period is next: 0 if they hold nothing, else the one after the last that most chose after.

    Parameters
    ----------
    grid
        The grid that Flower gives to the server app.
    clients : int
        How many clients to wait for: an app that has just started may be there before them.
    run : str
        A name for the run.
    quorum : float
        Share of the clients that must answer.
    timeout : float
        Seconds to wait for each answer.
    max_in_flight : int
        How many messages may be on their way at once.
    stop : Event, optional
        Set by another thread to end all waiting with an `EngineError`.
    """
    phase = _Phase(
        grid, run, Letter("next", run, 0, 0), quorum=quorum, timeout=timeout, max_in_flight=max_in_flight, stop=stop
    )
    failed: dict[str, str] = {}
    until = time.monotonic() + timeout
    while True:
        failed |= phase.look(lambda facts: logging.getLogger("flwr").warning(facts.get("text")))
        if len(phase.held.keys() | failed.keys()) >= clients:
            break
        if time.monotonic() > until:
            raise EngineError(f"{len(phase.held)} clients are there after {timeout:g} s instead of {clients} (clients)")
        if phase.courier.stopped(LOOK):
            raise EngineError("the run was stopped")
    failed = {client: why for client, why in failed.items() if client not in phase.held}
    phase.check_quorum(len(phase.held) + len(failed), failed, "next period")
    return _due(phase.held)


def choose_jointly(
    grid: Grid,
    arrays: ArrayRecord,
    *,
    period: int,
    fresh: bool = False,
    rounds: int = 4,
    secure: bool = False,
    max_budget: int | None = None,
    run: str = "app",
    quorum: float = 0.5,
    timeout: float = 600.0,
    max_in_flight: int = 4,
    stop: Event | None = None,
) -> Choice:
    """Let all clients choose jointly what they keep of a period.

    The same period again, after a crash in the middle of it, chooses the same again. Any other period than the next is
    refused: nothing that a client holds is deleted unless `fresh` says so.

    Parameters
    ----------
    grid
        The grid that Flower gives to the server app.
    arrays
        The model after the period's rounds, as it goes to clients for training.
    period : int
        The number of the period, from 0: what `next_period` returned when the app started.
    fresh : bool
        Start over: every client first deletes everything that it holds.
    rounds : int
        Rounds of the coordination.
    secure : bool
        Learn only the sums of the clients' contributions.
    max_budget : int, optional
        A client that says it keeps more chooses alone and is named: its contribution could be that much longer than
        the others'. Ten times the median of the budgets if absent.
    run : str
        A name for the run.
    quorum : float
        Share of the clients that must answer.
    timeout : float
        Seconds to wait for each answer.
    max_in_flight : int
        How many messages may be on their way at once.
    stop : Event, optional
        Set by another thread to end all waiting with an `EngineError`.
    """
    hello = Letter("hello", run, period, 0, {"fresh": fresh})
    phase = _Phase(grid, run, hello, quorum=quorum, timeout=timeout, max_in_flight=max_in_flight, stop=stop)
    choice = Choice()

    def watch(facts: Any) -> None:
        if "text" in facts:
            choice.problems.append(facts["text"])
            logging.getLogger("flwr").warning(facts["text"])

    failed = phase.look(watch)
    due = _due(phase.held)
    if not fresh and phase.held and period not in (due, due - 1):
        raise InputError(
            f"period = {period} is not the next one: {_described(phase.held)}; go on with period={due} (next_period "
            "returns it), or start over with fresh=True, which deletes what the clients hold"
        )
    phase.check_quorum(len(phase.pools) + len(failed), failed, f"hello, period {period}")
    clients: Sequence[str] = sorted(client for client, size in phase.pools.items() if size)
    taking = phase.taking([c for c in clients if phase.pools[c] > max(phase.budgets[c], 1)], max_budget, watch)
    terms = Terms(run, period, rounds, phase.dimension, secure=secure)
    broadcast = negotiate(phase, terms, taking, arrays, watch, choice.rounds.append)
    phase.settle(period, clients, arrays, broadcast, watch)
    choice.kept.update(phase.sizes())
    return choice


def _due(held: Mapping[str, int]) -> int:
    """Return the next period: after the one that most clients hold a buffer of, the earlier one if two are as many.

    Clients that hold nothing may be new, so they do not count; but where nearly all hold nothing, nobody is believed.

    >>> _due({"a": 4, "b": 4, "c": 3, "new": -1}), _due({"a": 1, "b": 0}), _due({"a": -1, "b": -1, "c": -1, "d": 99})
    (5, 1, 0)
    """
    found = Counter(period for period in held.values() if period >= 0)
    if 3 * found.total() < len(held) or not found:
        return 0
    return min(period for period, count in found.items() if count == max(found.values())) + 1


def _described(held: Mapping[str, int]) -> str:
    counts = sorted(Counter(held.values()).items(), reverse=True)
    parts = [
        f"{count} of {len(held)} clients hold " + (f"buffers chosen after period {p}" if p >= 0 else "nothing")
        for p, count in counts
    ]
    return ", ".join(parts)


class _Phase(Rounds):
    """The clients of one phase, with what each said: its budget, its pool, its sketch, and the period it holds."""

    def __init__(
        self,
        grid: Grid,
        run: str,
        hello: Letter,
        *,
        quorum: float,
        timeout: float,
        max_in_flight: int,
        stop: Event | None,
    ) -> None:
        courier = Courier(grid, lambda: hello, timeout=timeout, max_in_flight=max_in_flight, stop=stop)
        super().__init__(courier, run, run, quorum)
        self._hello = hello
        self.held: dict[str, int] = {}
        self.budgets: dict[str, int] = {}
        self.pools: dict[str, int] = {}
        self.lengths: dict[str, int] = {}

    def enter(self, answer: Answer) -> str:
        assert answer.letter is not None, "an answer without a problem has a letter"
        facts, client = answer.letter.facts, answer.client
        held: Any = facts.get("held")
        if type(held) is not int or not -1 <= held < 2**31:
            return "it did not say after which period it last chose"
        self.held[client] = held
        if answer.letter.act == "next":
            return ""
        found: list[Any] = [facts.get(name) for name in ("budget", "pool", "kept", "size")]
        if not is_whole(found) or not found[0] or not found[3]:
            return "it did not say how much it has and may keep"
        if held > self._hello.period:
            return f"it holds a buffer that it chose after period {held}"
        if facts.get("same") is not True:
            return (
                f"it has chosen after period {held} already, from other data: go on with the next period, or start "
                "over with fresh=True"
            )
        self.budgets[client], self.pools[client], self._sizes[client], self.lengths[client] = found
        return ""

    def most_kept(self, client: str, period: int) -> int:
        return min(self.budgets[client], self.pools[client])

    def taking(self, able: Sequence[str], largest: int | None, watch: Watch) -> dict[str, int]:
        """Return the budgets of those who coordinate; a client with an odd sketch or budget is named, and left out."""
        lengths = Counter(self.lengths[client] for client in able)
        self.dimension = max(lengths, key=lambda size: (lengths[size], -size), default=1)
        most = largest or LARGEST * median_low([self.budgets[client] for client in able] or [1])
        found = {}
        for client in able:
            problem = ""
            if self.lengths[client] != self.dimension:
                problem = f"has sketch_size {self.lengths[client]}, most clients have {self.dimension}"
            elif self.budgets[client] > most:
                problem = f"has a budget of {self.budgets[client]}, at most {most} is allowed (max_budget)"
            if problem:
                watch({"text": f"client {client!r} takes no part in the coordination: it {problem}"})
            else:
                found[client] = self.budgets[client]
        return found
