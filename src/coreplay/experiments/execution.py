"""Carries out a sweep: several runs at a time, each on one core, and nothing twice.

runs/NAME        a run's folder, as `coreplay run` makes it; NAME/failure.txt says why one failed
first/KEY.safetensors   the model after the first period, for all runs that have this period in common

Whatever is finished is taken as it is, what stopped goes on, what failed is tried again: the same call again is how a
sweep is resumed, and how one is extended.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coreplay.engines import LocalEngine, prepare, run
from coreplay.engines.api import Prepared
from coreplay.errors import InputError
from coreplay.experiments.board import FAILED, FINISHED, RUNNING, WAITING, Board
from coreplay.experiments.sweep import Planned
from coreplay.federated import Event, FlatModel, Observer, RunFolder
from coreplay.federated.config import PROCESSES
from coreplay.federated.folder import CHECKPOINT, CONFIG, FAILURE
from coreplay.files import alone_in, copy, disk_full, write_text
from coreplay.plugins import check_same_plugins


class StoppedError(Exception):
    """The sweep is being stopped: the run stops at its next event and goes on from its last checkpoint later."""


def places(board: Board, folder: Path) -> dict[str, Path]:
    """Return where each run is kept; mark those that are finished. A folder with another run is refused."""
    found = {}
    for planned in board.runs:
        if planned.config.engine.name != PROCESSES:
            raise InputError(
                f"engine.name = {planned.config.engine.name!r}: a sweep runs its runs with the engine 'processes'"
            )
        path = found[planned.name] = folder / "runs" / planned.name
        if not (path / CONFIG).exists():
            continue
        place = RunFolder.open(path)
        kept = place.config()
        check_same_plugins(kept.plugins, planned.config.plugins, path)
        same = {"engine": planned.config.engine, "plugins": planned.config.plugins}
        if kept.model_copy(update=same) != planned.config:
            raise InputError(f"{str(path)!r} holds a run of another configuration: choose another folder, or delete it")
        summary = place.summary()
        if summary is not None:
            board.set(planned, FINISHED, figure=summary["metrics"][summary["metric"]][-1])
    return found


def carry_out(
    board: Board, folder: Path | str, *, processes: int | None = None, tick: Callable[[], None] = lambda: None
) -> None:
    """Carry out all runs of the board that are not finished.

    Parameters
    ----------
    board
        The runs, and how far each is.
    folder
        The folder of the sweep.
    processes
        How many runs at a time; by default one per core.
    tick
        Called several times a second while runs go on, to show them.
    """
    folder = Path(folder)
    with alone_in(folder):
        _carry_out(board, folder, places(board, folder), processes, tick)


def _carry_out(
    board: Board, folder: Path, where: dict[str, Path], processes: int | None, tick: Callable[[], None]
) -> None:
    queue = Queue(board, folder / "first")
    waiting = sum(entry.state == WAITING for entry in board.entries.values())
    cores = len(os.sched_getaffinity(0))
    beside = max(1, min(processes or cores, waiting))
    board.begin()
    with ThreadPoolExecutor(beside) as pool:  # unlike `Thread.join`, it still waits after an interrupt
        try:
            serving = [
                pool.submit(_serve, queue, where, max(1, cores // beside)) for _ in range(beside if waiting else 0)
            ]
            while wait(serving, 0.2).not_done:
                tick()
        finally:
            queue.stop()
    if queue.fatal is not None:
        raise queue.fatal


class Queue:
    """Hands out runs to those who carry them out, so that nobody does what another is about to have done."""

    def __init__(self, board: Board, first: Path) -> None:
        self.board, self._first = board, first
        self._changed = threading.Condition()
        self._taken: set[str] = set()
        self._stopped = False
        self._prepared: dict[str, Prepared] = {}
        self._preparing = threading.Lock()
        self.fatal: BaseException | None = None

    def first(self, planned: Planned) -> Path:
        """Return the file with the model after the first period of this run."""
        return self._first / f"{planned.first}.safetensors"

    def take(self, group: str | None) -> Planned | None:
        """Return a run to carry out, preferably of this group; wait if all that is left needs another's first period.

        None: there is nothing left.
        """
        with self._changed:
            while True:
                left = [p for p in self.board.runs if self.board.entries[p.name].state == WAITING]
                if not left or self._stopped:
                    return None
                ready = [p for p in left if p.first not in self._taken or self.first(p).exists()]
                if ready:
                    planned = min(ready, key=lambda p: p.group != group)
                    self._taken.add(planned.first)
                    self.board.set(planned, RUNNING)
                    return planned
                self._changed.wait(0.5)

    def give_back(self, planned: Planned, state: str, problem: str = "") -> None:
        """Say how a run ended."""
        with self._changed:
            if not self.first(planned).exists():  # somebody else has to do the first period
                self._taken.discard(planned.first)
            self.board.set(planned, state, problem=problem)
            if not any(
                self.board.entries[p.name].state == WAITING for p in self.board.runs if p.group == planned.group
            ):
                self._prepared.pop(planned.group, None)
            self._changed.notify_all()

    def prepared(self, planned: Planned) -> Prepared:
        """Return the stream and the task of a run, made once for all that share them, and the run's first model."""
        with self._preparing:
            if planned.group not in self._prepared:
                self._prepared[planned.group] = prepare(planned.config)
            things = self._prepared[planned.group]
            return replace(things, start=FlatModel(things.task.model(planned.config.seed)).numpy().copy())

    def observer(self, planned: Planned) -> Observer:
        """Return an observer that keeps the board up to date, and stops the run when the sweep is stopped."""

        def observe(event: Event) -> None:
            if self._stopped:
                raise StoppedError
            self.board.entries[planned.name].take(event)

        return observe

    def stop(self, why: BaseException | None = None) -> None:
        """Let nobody begin anything more; runs stop at their next event."""
        with self._changed:
            self._stopped, self.fatal = True, self.fatal or why
            self._changed.notify_all()


def _serve(queue: Queue, where: dict[str, Path], workers: int) -> None:
    """Carry out one run after the other, on worker processes that live as long as the stream is the same."""
    engine: LocalEngine | None = None
    group: str | None = None
    try:
        while (planned := queue.take(group)) is not None:
            path = where[planned.name]
            try:
                things = queue.prepared(planned)
                if engine is not None and group != planned.group:
                    engine.close()
                    engine = None
                if engine is None:
                    engine, group = LocalEngine(things.stream, things.task, things.start, workers), planned.group
                carry_out_one(planned, path, queue.first(planned), queue.observer(planned), things, engine)
            except StoppedError:
                queue.give_back(planned, WAITING)
                return
            except Exception as error:
                if disk_full(error):
                    queue.give_back(planned, WAITING)
                    queue.stop(error)
                    return
                with suppress(OSError, InputError):
                    write_text(path / FAILURE, f"{type(error).__name__}: {error}\n")
                queue.give_back(planned, FAILED, in_a_line(error))
                if engine is not None:  # it may have died with the run
                    engine.close()
                    engine = group = None
            else:
                queue.give_back(planned, FINISHED)
    except BaseException as error:  # not of a run, but of this code
        queue.stop(error)
    finally:
        if engine is not None:
            engine.close()


def carry_out_one(
    planned: Planned,
    path: Path,
    first: Path,
    observer: Observer,
    prepared: Prepared | None = None,
    engine: LocalEngine | None = None,
) -> None:
    """Carry out a run, or go on with it; its first period is taken from the file `first`, or left there for others."""
    (path / FAILURE).unlink(missing_ok=True)
    if (path / CONFIG).exists():
        place = RunFolder.open(path)
    else:
        place = RunFolder.create(path, planned.config)
    if first.exists() and not (path / CHECKPOINT).exists():
        place.start_from(first)
    _leave(place, first)

    def watch(event: Event) -> None:
        observer(event)
        if event.kind == "evaluated" and event.period == 0:
            _leave(place, first)

    run(planned.config, path, resume=True, observer=watch, prepared=prepared, engine=engine)


def _leave(place: RunFolder, first: Path) -> None:
    """Leave the model after the first period for others, if this run stands just there and nobody has yet."""
    if first.exists():
        return
    found = place.checkpoint()
    if found is not None and found.progress.period == 0 and found.progress.measured:
        copy(place.path / CHECKPOINT, first, private=True)


def in_a_line(error: BaseException) -> str:
    r"""Say what went wrong in one line; some errors have no text but their name.

    >>> in_a_line(ValueError("too small\nby far")), in_a_line(MemoryError())
    ('too small', 'MemoryError')
    """
    return next(iter(str(error).splitlines()), "") or type(error).__name__
