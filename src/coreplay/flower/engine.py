"""A run over Flower, on nodes that are simulated or real."""

import math
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid
from numpy.typing import NDArray

from coreplay.files import read_json, reading, write_json, write_text
from coreplay.flower.grid import LARGEST_COUNT, START_TIMEOUT, GridEngine
from coreplay.plugins import plugin_sources
from coreplay.runtime.api import Prepared, prepare
from coreplay.runtime.client import contribution_length
from coreplay.runtime.config import Config
from coreplay.runtime.engine import EngineError
from coreplay.runtime.events import Answered, Observe, Observer, Problem
from coreplay.runtime.events import Event as RunEvent
from coreplay.runtime.observers import watching
from coreplay.runtime.requests import FinishPeriod, Join, Joined, Reply, Request, Train
from coreplay.runtime.result import Run
from coreplay.runtime.run_dir import RunFolder
from coreplay.runtime.strategy import ALL
from coreplay.runtime.trainer import Trainer, check
from coreplay.tasks import Task

CLIENTS, RUN_ID = "clients.json", "run.id"
MAX_IN_FLIGHT = 64  # real clients work each for themselves: ask many at once
JOIN_TIMEOUT = 30.0  # seconds to wait for nodes that have just come, once the run has begun
Counts = dict[str, list[int]]  # samples per period, by client


class KnownClients:
    """The clients that a run knows, with how many samples each has per period."""

    def __init__(self, train: Counts, test: Counts) -> None:
        self.train, self.test = train, test

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


class FlowerEngine(GridEngine):
    """Carries a run.

    The server knows of each client its name, how many samples it has in each period, and how many it keeps; no more.
    `period` is the last one whose buffers count: -1 in a new run.
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
        super().__init__(
            grid,
            place.read_text(encoding="utf-8").strip(),
            quorum=config.engine.quorum,
            timeout=config.engine.timeout,
            max_in_flight=max_in_flight,
            dimension=contribution_length(config, task.model),
            stop=stop,
        )
        if not self.simulated:  # one that comes later is taken in later: the run does not wait for it
            self.join_timeout = min(self.timeout, JOIN_TIMEOUT)
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
        self._joined = {c: (self.known.train[c], self.known.test[c]) for c in self.known.clients}

    def join_request(self, period: int) -> Join:
        """Return the request to join: a client goes back to the buffers of the end of the period before this one."""
        self._rewind_to = period - 1
        about: dict[str, Any] = {"run": self.run_id, "period": max(self._rewind_to, 0), "rewind_to": self._rewind_to}
        given = self.config.model_dump(mode="json")
        return Join(**about, config=given, artifacts=self._artifacts, plugins=self._plugins)

    def wait(self, wanted: int, observe: Observe) -> None:
        """Wait until enough clients are there; `observe` gets those that can't take part."""
        # when going on, as many as the rounds need
        wanted = max(wanted, math.ceil(self.quorum * len(self.known.clients)))
        timeout = max(self.timeout, START_TIMEOUT)
        until = time.monotonic() + timeout
        while True:
            self.discover(observe, self._rewind_to + 1)
            if len(self.nodes) >= wanted and (self._begun or self._agree(observe)):
                break
            if time.monotonic() > until and len(self.nodes) < wanted:
                raise EngineError(
                    f"{len(self.nodes)} clients are there after {timeout:g} s instead of {wanted} "
                    "(engine.min_clients): are their SuperNodes running, and do they reach the SuperLink?"
                )
            if time.monotonic() > until:
                numbers = ", ".join(f"{client!r}: {len(train)}" for client, (train, _) in sorted(self._joined.items()))
                raise EngineError(
                    f"the clients' data have different numbers of periods ({numbers}), and no number is that of most "
                    "clients: say in the configuration how many there are (periods)"
                )
            self.pause()
        self._begun = True
        self._remember()

    def _remember(self) -> None:
        known = {"train": self.known.train, "test": self.known.test, "chosen": self._chosen}
        write_json(self.folder / CLIENTS, known)

    def _agree(self, observe: Observe) -> bool:
        """Take in the clients whose data has as many periods as that of most; return whether there are most."""
        counts = Counter(len(train) for train, _ in self._joined.values())
        periods, clients = counts.most_common(1)[0]
        if 2 * clients <= counts.total():
            return False
        for client, (train, test) in sorted(self._joined.items()):
            if len(train) == periods:
                self.known.train[client], self.known.test[client] = train, test
            else:
                text = f"its data has {len(train)} periods, that of most clients has {periods}"
                observe(Problem(f"client {client!r} can't take part: {text}"))
        return True

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
        self._joined.setdefault(client, (train, test))
        offered, replay = sum(self._joined[client][0][: self._rewind_to + 1]), self.config.replay
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

    def expected_bytes(self, request: Request, clients: int) -> int:
        """Return how many bytes a reply may bring."""
        if isinstance(request, Train | FinishPeriod):
            vectors = 1 + self._sums[0] if isinstance(request, Train) else self._sums[1]
            return vectors * request.model.nbytes
        return super().expected_bytes(request, clients)


def carry_out(
    grid: Grid,
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    prepared: Prepared | None = None,
    clients: int | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    stop: Event | None = None,
) -> Run:
    """Carry out a run over a grid, in a folder that is made for it or holds a run to go on with.

    It begins when `clients` are there; without that, when as many are as the configuration says.
    """
    torch.set_num_threads(1)
    assets = prepared or prepare(config)
    place = RunFolder.open(folder) if resume else RunFolder.create(folder, config)
    begun = place.checkpoint()
    period = begun.progress.period if begun else 0
    with watching(config, folder, observer) as watched:

        def observe(report: Answered | Problem) -> None:
            if isinstance(report, Problem):
                watched(RunEvent("warning", period, 0, {"text": report.text}))

        most = config.engine.max_in_flight or max_in_flight
        engine = FlowerEngine(grid, config, folder, assets.task, period=period - 1, max_in_flight=most, stop=stop)
        engine.wait(clients or config.engine.min_clients, observe)
        check(config, engine.registry)
        return Trainer(config, assets.task, engine, place, assets.start, assets.trainable, watched).run()
