"""What the engines on one machine have in common: all clients' data and buffers are here, and jobs do the work.

A job is some requests that one process handles in a row. The clients of a group are trained and summed in one job, so
memory does not grow with the number of clients.
"""

import shutil
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from coreplay.data import FederatedStream
from coreplay.replay import Store
from coreplay.replay.contents import BufferStats, buffer_stats
from coreplay.replay.store import Moment
from coreplay.runtime.config import Config
from coreplay.runtime.engine import Check, Engine, EngineError, GroupSum, Missing, Replies, Requests
from coreplay.runtime.engines.host import BUFFERS, SCRATCH, Begin, Job
from coreplay.runtime.engines.importing import Key
from coreplay.runtime.events import Answered, Observe
from coreplay.runtime.requests import CHANGE, Evaluate, Request, Select, Settle
from coreplay.tasks import Task

TEST_ROWS = 1024  # test samples per job
CLIENTS_PER_JOB = 8


class WorkerError(EngineError):
    """A client failed twice; names it, with the traceback."""


class MachineEngine(Engine):
    """An engine on one machine; a subclass says who does the jobs.

    It may serve several runs, one after the other, of the same stream and task.
    """

    def __init__(self, stream: FederatedStream, task: Task) -> None:
        super().__init__()
        self.registry, self.stream, self.task = stream, stream, task
        self.unknown_there: set[Key] = set()  # what the user registered here and worker processes do not know
        self._begun: Begin | None = None
        self._store: Store | None = None

    @abstractmethod
    def _each(self, jobs: Sequence[Job], observe: Observe) -> Iterator[tuple[int, Any]]:
        """Do all jobs; return (number, result) as they come. A job that fails is tried once more."""

    @abstractmethod
    def _to_all(self, begun: Begin) -> None:
        """Let everybody who does jobs know that a run begins."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store(self) -> Store:
        """The buffers and states of all clients of the run."""
        assert self._store is not None, "begin comes first"
        return self._store

    def close(self) -> None:
        """Close the run's files."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self._clear()

    def _clear(self) -> None:
        if self._begun is not None:
            shutil.rmtree(self._begun.folder / SCRATCH, ignore_errors=True)

    def begin(self, config: Config, folder: Path) -> None:
        """Serve this run from now on."""
        if self._store is not None:
            self._store.close()
        self._store = Store.open(folder / BUFFERS)
        self._begun = Begin(config, folder)
        self._to_all(self._begun)

    def rewind(self, period: int) -> None:
        """Go back to the buffers of the end of `period`."""
        self.store.rewind(period)
        known = self.store.load_many(self.store.clients())
        self.sizes = {client: len(buffer.items) for client, buffer in known.items()}

    def buffer_stats(self) -> BufferStats:
        """Count what all buffers hold: in a simulation all of them are here."""
        return buffer_stats(self.store.load_many(self.store.clients()).values(), self.stream.periods)

    def fingerprint(self, before: Moment) -> str:
        """Return a text that changes whenever a buffer or a client's state does."""
        return self.store.fingerprint(before)

    def _in_order(self, jobs: Sequence[Job], observe: Observe) -> Iterator[Any]:
        """Do all jobs, and return the results in the order of the jobs."""
        early: dict[int, Any] = {}
        following = 0
        for number, found in self._each(jobs, observe):
            client = jobs[number].last_client
            observe(Answered(client, len(jobs[number].requests) if client else 0))
            if number != following and isinstance(found, GroupSum) and CHANGE in found.sums:
                found.sums[CHANGE] = found.sums[CHANGE].copy()  # the next job sums into the same memory
            early[number] = found
            while following in early:
                yield early.pop(following)
                following += 1

    def ask(self, requests: Requests, observe: Observe, missing: Missing) -> Replies:
        """Answer requests in jobs of a few clients each."""
        first = requests[0][1] if requests else None
        size = 1 if isinstance(first, Evaluate) else CLIENTS_PER_JOB
        jobs = [Job(tuple(requests[at : at + size])) for at in range(0, len(requests), size)]
        for job, replies in zip(jobs, self._in_order(jobs, observe), strict=True):
            yield from zip((client for client, _ in job.requests), replies, strict=True)
        if isinstance(first, Select | Settle):
            self._clear()

    def group_sums(
        self,
        groups: Sequence[Sequence[str]],
        request: Request,
        max_weight: int,
        check: Check,
        observe: Observe,
        missing: Missing,
    ) -> Iterator[GroupSum]:
        """Train and sum each group in one job; replies are not checked, since they come from this program."""
        jobs = [Job(tuple((client, request) for client in group), max_weight) for group in groups]
        return self._in_order(jobs, observe)

    def evaluation_requests(self, request: Evaluate) -> list[tuple[str, Evaluate]]:
        """Measure the test samples of all clients together, in parts."""
        assert self._begun is not None, "begin comes first"
        sizes = self.stream.counts("test").sum(axis=0).tolist()[: self._begun.config.periods]
        return [
            ("", replace(request, rows=(period, at, min(at + TEST_ROWS, size))))
            for period, size in enumerate(sizes)
            for at in range(0, size, TEST_ROWS)
        ]
