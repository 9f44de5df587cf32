"""Who watches a run: its log, its trackers, and the observer that the caller gave.

The log's file is locked while the run goes on, so that two processes never write to one folder.
"""

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

from coreplay.errors import InputError
from coreplay.files import sweep_halves
from coreplay.runtime.config import Config
from coreplay.runtime.events import Event, Observer
from coreplay.runtime.tracker import Tracker, make_tracker

LOG = "run.log"
SILENT = "client"  # one event per client is too much for a log


@contextmanager
def watching(config: Config, folder: Path, observer: Observer | None = None) -> Iterator[Observer]:
    """Open the log and the trackers, and give one observer for them all.

    A tracker that fails on the way is left out from then on, with a warning: a run of hours must not end for it.
    """
    with ExitStack() as stack:
        log = stack.enter_context(_locked(folder))
        active: dict[str, Tracker] = {}
        for name in config.trackers:
            active[name] = make_tracker(name, config, folder)
            stack.callback(active[name].close)

        def watch(event: Event) -> None:
            if event.kind != SILENT:
                facts = {name: value for name, value in event.facts.items() if name != "trace"}
                _line(log, event.kind, {"period": event.period, "round": event.round} | facts)
            if observer is not None:
                observer(event)
            for name, tracker in list(active.items()):
                try:
                    tracker(event)
                except Exception as error:
                    del active[name]
                    text = f"tracker {name!r} failed and gets no more metrics: {error}"
                    watch(Event("warning", event.period, event.round, {"text": text}))

        try:
            yield watch
        except BaseException as error:
            with suppress(OSError):  # a full disk may be why the run stops
                _line(log, "stopped", {"by": type(error).__name__})
            raise


def is_running(folder: Path | str) -> bool:
    """Say whether some process carries out the run in this folder now."""
    path = Path(folder) / LOG
    if path.is_file():
        with path.open("rb") as file:
            return not _lock(file, fcntl.LOCK_SH)
    return False


def check_alone(folder: Path | str) -> None:
    """Raise an `InputError` if some process carries out the run in this folder now."""
    if is_running(folder):
        raise _busy(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[TextIO]:
    with (folder / LOG).open("a", encoding="utf-8", buffering=1) as file:
        if not _lock(file, fcntl.LOCK_EX):
            raise _busy(folder)
        sweep_halves(folder)
        yield file


def _lock(file: IO[Any], how: int) -> bool:
    """Lock a file until it is closed; return whether nobody else had locked it."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(folder: Path | str) -> InputError:
    return InputError(f"another process is carrying out the run in {str(folder)!r}: wait until it ends")


def _line(log: TextIO, kind: str, facts: dict[str, Any]) -> None:
    """Write a line: the time, what happened, and its facts as JSON."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    log.write(f"{now} {kind} {json.dumps(facts, ensure_ascii=False, default=str)}\n")
