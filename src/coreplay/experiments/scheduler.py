"""Runs a sweep: several runs at a time, each in its own worker processes, with shared work done once.

runs/NAME               the folder of one run, as `coreplay run` writes it; NAME/failure.txt says why a run failed
first/KEY.safetensors   the model after the first period, for all runs that share this period

Finished runs are kept, interrupted runs continue, and failed runs are tried again. Calling `run_sweep` again therefore
resumes a sweep, and calling it with a longer plan extends one.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from coreplay.errors import InputError
from coreplay.experiments.sweep import Planned
from coreplay.files import copy, disk_full, exclusive_lock, write_text
from coreplay.learning import FlatModel
from coreplay.plugins import check_same_plugins
from coreplay.runtime import Event, ProcessesEngine, RunFolder, prepare, run
from coreplay.runtime.api import Prepared
from coreplay.runtime.config import AUTO, PROCESSES
from coreplay.runtime.run_dir import CHECKPOINT, CONFIG, FAILURE

WAITING, RUNNING, FINISHED, FAILED = STATES = ("waiting", "running", "finished", "failed")


class StoppedError(Exception):
    """The sweep is stopping: the run stops at its next event and can continue from its last checkpoint."""


@dataclass
class RunStatus:
    """State of one run: `done` is the completed fraction, `start` that fraction when this process took the run up."""

    state: str = WAITING
    done: float = 0.0
    start: float = 0.0
    score: float | None = None
    problem: str = ""
    rounds: list[int] = field(default_factory=list)

    def update(self, event: Event) -> None:
        """Record an event of the run."""
        if event.kind == "begin":
            self.rounds = event.facts["rounds"]
        elif event.kind == "evaluated":
            self.score = next(iter(event.facts.values()))
        if self.rounds:
            self.done = min((sum(self.rounds[: event.period]) + event.round) / sum(self.rounds), 1.0)
        if event.kind == "begin":
            self.start = self.done


class SweepStatus:
    """The status of all runs of a sweep by name."""

    def __init__(self, runs: Sequence[Planned], clock: Callable[[], float] = time.monotonic) -> None:
        self.runs = tuple(runs)
        self.by_name = {planned.name: RunStatus() for planned in runs}
        self._clock, self._began = clock, clock()

    def set(self, planned: Planned, state: str, *, score: float | None = None, problem: str = "") -> None:
        """Set the state of a run."""
        status = self.by_name[planned.name]
        status.state, status.problem = state, problem
        status.score = status.score if score is None else score
        if state == FINISHED:
            status.done = 1.0
            status.start = status.start if status.rounds else 1.0  # without events it was finished before

    def waiting(self, group: str | None = None) -> list[Planned]:
        """Return the runs that wait, of one group or of all."""
        return [p for p in self.runs if self.by_name[p.name].state == WAITING and group in (None, p.group)]

    def counts(self) -> dict[str, int]:
        """Return the number of runs in each state."""
        found = Counter(status.state for status in self.by_name.values())
        return {state: found[state] for state in STATES}

    def seconds_left(self) -> float | None:
        """Estimate the remaining seconds from the pace so far; None before any progress.

        A first period that several runs share counts as work for one of them only.
        """
        known = next((status.rounds for status in self.by_name.values() if status.rounds), None)
        first = known[0] / sum(known) if known else 0.0
        begun = {planned.first for planned in self.runs if self.by_name[planned.name].done > 0}
        done = rest = 0.0
        for planned in self.runs:
            status = self.by_name[planned.name]
            done += status.done - status.start
            if status.state != FAILED:
                rest += 1.0 - (status.done or (first if planned.first in begun else 0.0))
            begun.add(planned.first)
        return (self._clock() - self._began) * rest / done if done > 0 else None

    def failures(self) -> dict[str, str]:
        """Return why runs failed, by name."""
        return {name: status.problem for name, status in self.by_name.items() if status.state == FAILED}


def find_finished(status: SweepStatus, folder: Path) -> None:
    """Mark the runs that are finished in the folder of the sweep; refuse a folder that holds different runs."""
    for planned in status.runs:
        if planned.config.engine.name not in (AUTO, PROCESSES):
            raise InputError(f"engine.name = {planned.config.engine.name!r}: a sweep needs engine.name = {PROCESSES!r}")
        path = folder / "runs" / planned.name
        if not (path / CONFIG).exists():
            continue
        stored = RunFolder.open(path)
        kept = stored.config()
        check_same_plugins(kept.plugins, planned.config.plugins, path)
        ignored = {"engine": planned.config.engine, "plugins": planned.config.plugins}
        if kept.model_copy(update=ignored) != planned.config:
            raise InputError(
                f"{str(path)!r} holds a run with another configuration: choose another folder, or delete it"
            )
        summary = stored.summary()
        if summary is not None:
            status.set(planned, FINISHED, score=summary["metrics"][summary["metric"]][-1])


def run_sweep(
    status: SweepStatus, folder: Path | str, *, workers: int | None = None, tick: Callable[[], None] = lambda: None
) -> None:
    """Run all runs of a sweep that are not finished.

    Parameters
    ----------
    status
        The planned runs; updated while they run.
    folder
        The folder of the sweep.
    workers
        The number of simultaneous runs; by default one per core.
    tick
        Called several times per second while runs are in progress, to display them.
    """
    with exclusive_lock(folder):
        find_finished(status, Path(folder))
        scheduler = Scheduler(status, Path(folder))
        cores = len(os.sched_getaffinity(0))
        parallel = max(1, min(workers or cores, len(status.waiting())))
        with ThreadPoolExecutor(parallel) as pool:  # unlike `Thread.join`, it still waits after an interrupt
            try:
                jobs = [pool.submit(scheduler.work, max(1, cores // parallel)) for _ in range(parallel)]
                while wait(jobs, 0.2).not_done:
                    tick()
            finally:
                scheduler.stop()
        for job in jobs:
            job.result()


class Scheduler:
    """Assigns runs to threads so that shared work, the first period and the stream, is done once."""

    def __init__(self, status: SweepStatus, folder: Path) -> None:
        self.status, self.folder = status, folder
        self._changed = threading.Condition()
        self._taken: set[str] = set()  # first periods that are done or in progress
        self._stopped = False
        self._prepared: dict[str, Prepared] = {}
        self._preparing = threading.Lock()

    def _first(self, planned: Planned) -> Path:
        """Return the file with the model after the first period of a run."""
        return self.folder / "first" / f"{planned.first}.safetensors"

    def _take(self, group: str | None) -> Planned | None:
        """Return the next run, preferably of this group, or None if none is left.

        Waits while every remaining run needs a first period that is in progress elsewhere.
        """
        with self._changed:
            while (left := self.status.waiting()) and not self._stopped:
                ready = [p for p in left if p.first not in self._taken or self._first(p).exists()]
                if ready:
                    planned = min(ready, key=lambda p: p.group != group)
                    self._taken.add(planned.first)
                    self.status.set(planned, RUNNING)
                    return planned
                self._changed.wait(0.5)
        return None

    def _release(self, planned: Planned, state: str, problem: str = "") -> None:
        """Record how a run ended."""
        with self._changed:
            if not self._first(planned).exists():  # another run has to train the first period
                self._taken.discard(planned.first)
            self.status.set(planned, state, problem=problem)
            if not self.status.waiting(planned.group):
                self._prepared.pop(planned.group, None)
            self._changed.notify_all()

    def _prepare(self, planned: Planned) -> Prepared:
        """Return the stream and the task of a run, made once per group, and the initial model of the run."""
        with self._preparing:
            if planned.group not in self._prepared:
                self._prepared[planned.group] = prepare(planned.config)
            shared = self._prepared[planned.group]
            return replace(shared, start=FlatModel(shared.task.model(planned.config.seed)).numpy().copy())

    def stop(self) -> None:
        """Start no more runs; those in progress stop at their next event."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def work(self, workers: int) -> None:
        """Run one run after another; worker processes are kept as long as the stream stays the same."""
        group: str | None = None
        try:
            with ExitStack() as engines:
                while (planned := self._take(group)) is not None:
                    try:
                        prepared = self._prepare(planned)
                        if group != planned.group:
                            engines.close()
                            made = ProcessesEngine(prepared.stream, prepared.task, prepared.start, workers)
                            engine, group = engines.enter_context(made), planned.group
                        self._run(planned, prepared, engine)
                        self._release(planned, FINISHED)
                    except StoppedError:
                        self._release(planned, WAITING)
                        return
                    except Exception as error:
                        if disk_full(error):
                            self._release(planned, WAITING)
                            raise
                        text = f"{type(error).__name__}: {error}\n"
                        with suppress(OSError, InputError):
                            write_text(self.folder / "runs" / planned.name / FAILURE, text)
                        self._release(planned, FAILED, str(error).partition("\n")[0] or type(error).__name__)
                        engines.close()  # its processes may have died with the run
                        group = None
        except BaseException:  # a full disk, or a fault of the scheduler
            self.stop()
            raise

    def _run(self, planned: Planned, prepared: Prepared, engine: ProcessesEngine) -> None:
        """Start or continue a run; use the stored first period, or store it for other runs."""
        path, first = self.folder / "runs" / planned.name, self._first(planned)
        (path / FAILURE).unlink(missing_ok=True)
        stored = RunFolder.open(path) if (path / CONFIG).exists() else RunFolder.create(path, planned.config)
        if first.exists() and not (path / CHECKPOINT).exists():
            stored.start_from(first)
        _share_first(stored, first)

        def observe(event: Event) -> None:
            if self._stopped:
                raise StoppedError
            self.status.by_name[planned.name].update(event)
            if event.kind == "evaluated" and event.period == 0:
                _share_first(stored, first)

        run(planned.config, path, resume=True, observer=observe, prepared=prepared, engine=engine)


def _share_first(stored: RunFolder, first: Path) -> None:
    """Store the model after the first period for other runs, if this run is just there and no other has done so."""
    if first.exists():
        return
    found = stored.checkpoint()
    if found is not None and found.progress.period == 0 and found.progress.measured:
        copy(stored.path / CHECKPOINT, first, private=True)
