"""The server's half of coordinated replay for a Flower app of your own: `next_period` and `choose_jointly`.

The clients count the periods: each knows the last one that it chose after, so an app that is started again can ask.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from coreplay.coordination import CoordinationSpec, RoundResult, takes_part
from coreplay.errors import InputError
from coreplay.flower.grid import LARGEST_COUNT, GridEngine
from coreplay.flower.replay import Offer, Offered
from coreplay.runtime import keeping
from coreplay.runtime.engine import EngineError
from coreplay.runtime.events import Answered, Observe, Problem
from coreplay.runtime.requests import Reply

RUN = "app"  # the name of the run in messages
LARGEST = 10  # times the median of the clients' budgets


@dataclass(frozen=True)
class SelectionResult:
    """How a phase of choosing went: rounds, what clients keep now, and who was missing or refused, and why."""

    rounds: list[RoundResult] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def next_period(
    grid: Grid, *, clients: int = 1, quorum: float = 0.5, timeout: float = 600.0, max_in_flight: int = 4
) -> int:
    """Ask the clients which period is next: 0 if they hold nothing, else the one after the last that most chose after.

    Parameters
    ----------
    grid
        The grid that Flower gives to the server app.
    clients : int
        How many clients to wait for: an app that has just started may be there before them.
    quorum : float
        Share of the clients that must answer.
    timeout : float
        Seconds to wait for each answer.
    max_in_flight : int
        How many messages may be on their way at once.
    """
    engine = _AppEngine(grid, Offer(run=RUN, only_held=True), quorum, timeout, max_in_flight)
    failed: dict[str, str] = {}
    until = time.monotonic() + timeout
    while True:
        failed |= engine.discover(_log, 0)
        if len(engine.held.keys() | failed.keys()) >= clients:
            break
        if time.monotonic() > until:
            raise EngineError(
                f"{len(engine.held)} clients are there after {timeout:g} s instead of {clients} (clients)"
            )
        engine.pause()
    failed = {client: why for client, why in failed.items() if client not in engine.held}
    engine.check_quorum(len(engine.held) + len(failed), failed, "next period")
    return _due(engine.held)


def _log(report: Answered | Problem) -> None:
    if isinstance(report, Problem):
        logging.getLogger("flwr").warning(report.text)


def choose_jointly(
    grid: Grid,
    arrays: ArrayRecord,
    *,
    period: int,
    fresh: bool = False,
    rounds: int = 4,
    method: str = "corrective",
    secure: bool = False,
    max_budget: int | None = None,
    quorum: float = 0.5,
    timeout: float = 600.0,
    max_in_flight: int = 4,
) -> SelectionResult:
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
    method : str
        Coordination method, the same as that of the clients' `ReplayBuffer`.
    secure : bool
        Learn only the sums of the clients' contributions.
    max_budget : int, optional
        A client that says it keeps more chooses alone and is named: its contribution could be that much longer than
        the others'. Ten times the median of the budgets if absent.
    quorum : float
        Share of the clients that must answer.
    timeout : float
        Seconds to wait for each answer.
    max_in_flight : int
        How many messages may be on their way at once.
    """
    engine = _AppEngine(grid, Offer(run=RUN, period=period, fresh=fresh), quorum, timeout, max_in_flight)
    result = SelectionResult()

    def observe(report: Answered | Problem) -> None:
        _log(report)
        if isinstance(report, Problem):
            result.problems.append(report.text)

    failed = engine.discover(observe, period)
    due = _due(engine.held)
    if not fresh and engine.held and period not in (due, due - 1):
        raise InputError(
            f"period = {period} is not the next one: {_described(engine.held)}; go on with period={due} (next_period "
            "returns it), or start over with fresh=True, which deletes what the clients hold"
        )
    offers = engine.offers
    engine.check_quorum(len(offers) + len(failed), failed, f"joining, period {period}")
    clients = sorted(client for client, offer in offers.items() if offer.pool)
    able = [client for client in clients if takes_part(offers[client].pool, offers[client].budget)]
    budgets = engine.taking_part(able, max_budget, observe)
    spec = CoordinationSpec(RUN, period, rounds, engine.dimension, method, secure=secure)
    model = {name: array.numpy() for name, array in arrays.items()}
    keeping.coordinate(engine, spec, clients, budgets, model, engine.most_kept, observe, result.rounds.append)
    result.kept.update(engine.sizes)
    return result


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
    return ", ".join(
        f"{count} of {len(held)} clients hold " + (f"buffers chosen after period {p}" if p >= 0 else "nothing")
        for p, count in counts
    )


class _AppEngine(GridEngine):
    """The clients of somebody's own app, with what each offered: its budget, its pool, and the period it holds."""

    def __init__(self, grid: Grid, offer: Offer, quorum: float, timeout: float, max_in_flight: int) -> None:
        super().__init__(grid, offer.run, quorum=quorum, timeout=timeout, max_in_flight=max_in_flight)
        self._offer = offer
        self.held: dict[str, int] = {}
        self.offers: dict[str, Offered] = {}

    def join_request(self, period: int) -> Offer:
        return self._offer

    def register(self, client: str, reply: Reply) -> str:
        if not isinstance(reply, Offered) or not -1 <= reply.held < 2**31:
            return "it did not say after which period it last chose"
        self.held[client] = reply.held
        if self._offer.only_held:
            return ""
        counts = (reply.budget, reply.pool, reply.kept, reply.sketch_size)
        if not all(0 <= count < LARGEST_COUNT for count in counts) or not reply.budget or not reply.sketch_size:
            return "it did not say how much it has and may keep"
        if reply.held > self._offer.period:
            return f"it holds a buffer that it chose after period {reply.held}"
        if not reply.same_data:
            return (
                f"it has chosen after period {reply.held} already, from other data: go on with the next period, or "
                "start over with fresh=True"
            )
        self.offers[client], self.sizes[client] = reply, reply.kept
        return ""

    def most_kept(self, client: str) -> int:
        return min(self.offers[client].budget, self.offers[client].pool)

    def taking_part(self, able: Sequence[str], largest: int | None, observe: Observe) -> dict[str, int]:
        """Return the budgets of those who coordinate; a client with an odd sketch or budget is named, and left out."""
        lengths = Counter(self.offers[client].sketch_size for client in able)
        self.dimension = max(lengths, key=lambda size: (lengths[size], -size), default=1)
        most = largest or LARGEST * median_low([self.offers[client].budget for client in able] or [1])
        found = {}
        for client in able:
            problem, offer = "", self.offers[client]
            if offer.sketch_size != self.dimension:
                problem = f"sketches gradients to {offer.sketch_size} numbers, most clients to {self.dimension}"
            elif offer.budget > most:
                problem = f"has a budget of {offer.budget}, at most {most} is allowed (max_budget)"
            if problem:
                observe(Problem(f"client {client!r} takes no part in the coordination: it {problem}"))
            else:
                found[client] = offer.budget
        return found
