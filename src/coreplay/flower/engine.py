"""The Flower engines: they carry requests to clients on Flower's nodes, simulated or real."""

import math
import time
import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from coreplay import codec
from coreplay.errors import InputError
from coreplay.files import read_json, reading, write_json, write_text
from coreplay.flower.transport import START_TIMEOUT, GridTransport, Outcome
from coreplay.plugins import plugin_sources
from coreplay.runtime.client import contribution_length
from coreplay.runtime.config import Config
from coreplay.runtime.engine import Engine, EngineError, refuse
from coreplay.runtime.events import Answered, Observe, Problem
from coreplay.runtime.requests import (
    Contribute,
    FinishPeriod,
    Join,
    Joined,
    Reply,
    Request,
    SecureStep,
    Settle,
    Train,
)
from coreplay.runtime.strategy import ALL
from coreplay.tasks import Task

CLIENTS, RUN_ID = "clients.json", "run.id"
POLL = 0.5  # seconds between two looks for clients at the start
JOIN_TIMEOUT = 30.0  # seconds to wait for nodes that have just come, once the run has begun
PER_PEER = 2**13  # bytes about one other client in a message of a secure sum: its name in JSON, and shares
LARGEST_COUNT = 2**40


@dataclass(frozen=True)
class KnownClients:
    """The clients that a run knows, with how much data each has."""

    train: dict[str, list[int]]
    test: dict[str, list[int]]

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients, sorted."""
        return tuple(sorted(self.train))

    @property
    def periods(self) -> int:
        """How many periods there are."""
        return len(next(iter(self.train.values()), []))

    def counts(self, split: str) -> NDArray[np.int64]:
        """Return how many samples each client has in each period: (clients, periods)."""
        table = self.train if split == "train" else self.test
        return np.array([table[client] for client in self.clients], dtype=np.int64)


class GridEngine(Engine):
    """What runs and other people's apps have in common: clients join, and are asked over a grid.

    The model of a coordination is sent to each client once: its later requests come without it.

    Parameters
    ----------
    transport : GridTransport
        Brings requests to clients.
    run_id : str
        The name of the run in requests.
    quorum : float
        The fraction of the clients asked that must answer.
    dimension : int
        The length of a contribution.
    """

    trusted = False

    def __init__(self, transport: GridTransport, run_id: str, quorum: float, dimension: int = 0) -> None:
        super().__init__()
        self.transport, self.run_id, self.quorum, self.dimension = transport, run_id, quorum, dimension
        self.join_timeout = max(transport.timeout, START_TIMEOUT)
        self._session, self._informed = "", set[str]()  # who has the model of this coordination

    @abstractmethod
    def register(self, client: str, reply: Reply) -> str:
        """Take in what a client joined with; return what is wrong with it."""

    def discover(self, observe: Observe, period: int) -> dict[str, str]:
        """Get to know clients that have joined or come back; return those that can't take part, and why."""
        failed = {}
        for node, found in self.transport.discover(self.join_timeout):
            known = found.client in self.transport.nodes
            problem = found.problem or self._unfit(found, node)
            if problem:
                if not known:
                    failed[found.client[:40]] = problem
                how = "is not there yet" if found.late else "can't take part"
                observe(Problem(f"client {found.client[:40]!r} {how}: {problem}"))
                continue
            if self.transport.accept(found, node):
                observe(Problem(f"client {found.client!r} is reached at another node now"))
            self._informed.discard(found.client)
        return failed

    def _unfit(self, found: Outcome, node: int) -> str:
        try:
            codec.check_name(found.client, "client")
        except InputError as error:
            return str(error)
        assert found.reply is not None, "an outcome without a problem has a reply"
        return self.transport.identity_conflict(found, node) or self.register(found.client, found.reply)

    def ask(
        self, requests: Sequence[tuple[str, Request]], observe: Observe, missing: dict[str, str]
    ) -> Iterator[tuple[str, Reply]]:
        """Bring requests to clients over the grid."""
        first = requests[0][1] if requests else None
        if isinstance(first, Contribute | Settle) and first.session != self._session:
            self._session, self._informed = first.session, set()
        sent = [
            (client, self._lightened(client, request), self._expected(request, len(requests)))
            for client, request in requests
        ]
        for found in self.transport.carry(sent):
            if found.reply is None:
                refuse(found.client, found.problem, observe, missing)
            else:
                observe(Answered(found.client))
                if isinstance(first, Contribute):
                    self._informed.add(found.client)
                yield found.client, found.reply
            del found  # may be as large as the model: not to be kept while waiting for the next one

    def _lightened(self, client: str, request: Request) -> Request:
        """Return the request without the model, if the client has it from an earlier one."""
        if not isinstance(request, Contribute | SecureStep | Settle) or client not in self._informed:
            return request
        return request.without_arrays

    def _expected(self, request: Request, clients: int) -> int:
        """Return how many bytes a reply may bring."""
        if isinstance(request, Contribute):
            return 0 if request.secure else 4 * self.dimension
        if isinstance(request, SecureStep):
            return 4 * self.dimension if request.step == "mask" else PER_PEER * clients
        return 0

    def rewind(self, period: int) -> None:
        """Nothing is left to do: every client rewinds when it joins."""


class FlowerEngine(GridEngine):
    """Carries a run.

    The server knows of each client its name, how many samples it has in each period, and how many it keeps; no more.

    Parameters
    ----------
    grid
        The grid that Flower gives to the server app.
    config : Config
        The configuration of the run.
    folder : Path
        The folder of the run.
    task : Task
        The task of the run: what clients must share of it, such as the vocabulary, is sent to them when they join.
    period : int
        The last period whose buffers count: -1 for a new run.
    max_in_flight : int
        How many requests may be on their way at once.
    stop : Event, optional
        Set by another thread to end the run.
    """

    def __init__(
        self,
        grid: Grid,
        config: Config,
        folder: Path,
        task: Task,
        *,
        period: int = -1,
        max_in_flight: int = 64,
        stop: Event | None = None,
    ) -> None:
        place = folder / RUN_ID
        if not place.exists():
            write_text(place, uuid.uuid4().hex)
        self._stop = stop or Event()
        timeout = config.engine.timeout
        transport = GridTransport(grid, self._join, timeout=timeout, max_in_flight=max_in_flight, stop=self._stop)
        run_id = place.read_text(encoding="utf-8").strip()
        super().__init__(transport, run_id, config.engine.quorum, contribution_length(config, task.model))
        if not transport.simulated:  # one that comes later is taken in later: the run does not wait for it
            self.join_timeout = min(timeout, JOIN_TIMEOUT)
        self.config, self.folder = config, folder
        self._artifacts, self._plugins = task.shared_artifacts(), plugin_sources(config.plugins)
        self._sums = len(config.methods().round_sums), len(config.methods().period_sums)
        self._rewind_to = period
        self._begun = (folder / CLIENTS).exists()
        self.known = KnownClients({}, {})
        self._chosen: dict[str, list[int]] = {}  # the periods after which each client chose
        if self._begun:
            with reading(folder / CLIENTS, "the clients of a run"):
                known = read_json(folder / CLIENTS)
                self.known, self._chosen = KnownClients(known["train"], known["test"]), known["chosen"]
        self.registry = self.known
        self._said = {c: (self.known.train[c], self.known.test[c]) for c in self.known.clients}

    def discover(self, observe: Observe, period: int) -> dict[str, str]:
        """Get to know clients; those that join go back to the buffers of the end of the period before this one."""
        self._rewind_to = period - 1
        return super().discover(observe, period)

    def _join(self) -> Join:
        given = self.config.model_dump(mode="json")
        about: dict[str, Any] = {"run": self.run_id, "period": max(self._rewind_to, 0), "rewind_to": self._rewind_to}
        return Join(**about, config=given, artifacts=self._artifacts, plugins=self._plugins)

    def wait(self, wanted: int, observe: Observe) -> None:
        """Wait until enough clients are there; `observe` gets those that can't take part."""
        # when going on, as many as the rounds need
        wanted = max(wanted, math.ceil(self.quorum * len(self.known.clients)))
        timeout = max(self.config.engine.timeout, START_TIMEOUT)
        until = time.monotonic() + timeout
        while True:
            self.discover(observe, self._rewind_to + 1)
            if len(self.transport.nodes) >= wanted and (self._begun or self._agreed(observe)):
                break
            if time.monotonic() > until:
                raise EngineError(
                    f"{len(self.transport.nodes)} clients are there after {timeout:g} s instead of "
                    f"{wanted} (engine.min_clients): are their SuperNodes running, and do they reach the SuperLink?"
                    if len(self.transport.nodes) < wanted
                    else f"the clients' data have different numbers of periods ({self._numbers()}), and no number is "
                    "that of most clients: say in the configuration how many there are (periods)"
                )
            if self._stop.wait(POLL):
                raise EngineError("the run was stopped")
        self._begun = True
        self._remember()

    def _remember(self) -> None:
        known = {"train": self.known.train, "test": self.known.test, "chosen": self._chosen}
        write_json(self.folder / CLIENTS, known)

    def _agreed(self, observe: Observe) -> bool:
        """Register the clients whose data has as many periods as that of most; return whether there are most."""
        counts = Counter(len(train) for train, _ in self._said.values())
        periods, clients = counts.most_common(1)[0]
        if 2 * clients <= counts.total():
            return False
        for client, (train, test) in sorted(self._said.items()):
            if len(train) == periods:
                self.known.train[client], self.known.test[client] = train, test
            else:
                text = f"its data has {len(train)} periods, that of most clients has {periods}"
                observe(Problem(f"client {client!r} can't take part: {text}"))
        return True

    def _numbers(self) -> str:
        return ", ".join(f"{client!r}: {len(train)}" for client, (train, _) in sorted(self._said.items()))

    def register(self, client: str, reply: Reply) -> str:
        """Take in how much data a client has; return what is wrong with it."""
        if not isinstance(reply, Joined):
            return "sent a reply of another kind"
        counts = [*reply.train, *reply.test, reply.kept]
        if not reply.train or len(reply.train) != len(reply.test) or not all(0 <= n < LARGEST_COUNT for n in counts):
            return "sample counts must be non-negative integers, one per period"
        periods = self.config.periods
        if periods is not None and len(reply.train) < periods:
            return f"its data has {len(reply.train)} periods, the configuration says {periods}"
        train, test = reply.train[:periods], reply.test[:periods]
        if self._begun and client not in self.known.train:
            return "the run has begun without it"
        if self._begun and len(train) != self.known.periods:
            return f"its data has {len(train)} periods, the run has {self.known.periods}"
        self._said.setdefault(client, (train, test))
        offered, replay = sum(self._said[client][0][: self._rewind_to + 1]), self.config.replay
        most = offered if replay.strategy == ALL else min(offered, replay.budget_of(client, offered))
        if reply.kept > most:
            return f"it says it keeps {reply.kept} samples: at most {most} are possible"
        chosen = max((period for period in self._chosen.get(client, []) if period <= self._rewind_to), default=-1)
        if reply.held < chosen:
            return f"its buffer after period {chosen + 1} is gone: restore its state folder"
        self.sizes[client] = reply.kept
        return ""

    def note_kept(self, period: int, kept: Mapping[str, int]) -> None:
        """Record how many samples clients keep, and on the disk who has chosen after which period."""
        super().note_kept(period, kept)
        for client in kept:
            before = [earlier for earlier in self._chosen.get(client, []) if earlier < period]
            self._chosen[client] = [*before, period]
        self._remember()

    def _expected(self, request: Request, clients: int) -> int:
        if isinstance(request, Train | FinishPeriod):
            vectors = 1 + self._sums[0] if isinstance(request, Train) else self._sums[1]
            return vectors * request.model.nbytes
        return super()._expected(request, clients)
