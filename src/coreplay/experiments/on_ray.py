"""A sweep spread over a Ray cluster: each run is a task that takes one core of any machine.

Nothing but Ray is shared between the machines: a task gets its configuration and the model after the first period,
which is a task of its own, and gives back the files of its run, which appear in the sweep's folder when the run is
finished. A run that is interrupted begins anew after its first period. Streams from files must be found under the same
path on every machine.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coreplay.errors import InputError
from coreplay.experiments.board import FAILED, FINISHED, RUNNING, WAITING, Board
from coreplay.experiments.execution import StoppedError, carry_out_one, in_a_line, places
from coreplay.experiments.sweep import Planned
from coreplay.federated import Event
from coreplay.federated.folder import FAILURE
from coreplay.files import alone_in, replacing, write_text

FIRST = "first.safetensors"


def carry_out_on_ray(board: Board, folder: Path | str, *, tick: Callable[[], None] = lambda: None) -> None:
    """Carry out all runs of the board that are not finished, on the cluster of RAY_ADDRESS or on this machine."""
    try:
        import ray
    except ImportError:
        raise InputError("--on ray needs Ray: install coreplay with its extra, coreplay[flower]") from None
    with alone_in(folder):
        where = places(board, Path(folder))
        board.begin()
        ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        try:
            _spread(ray, board, where, Path(folder) / "first", tick)
        finally:
            ray.shutdown()


def _spread(ray: Any, board: Board, where: dict[str, Path], first: Path, tick: Callable[[], None]) -> None:
    begin, go_on = (ray.remote(num_cpus=1, max_retries=1)(task) for task in (_first_on_node, _on_node))
    running: dict[Any, tuple[Planned, Path]] = {}
    while True:
        begun = {planned.first for planned, _ in running.values()}
        for planned in board.runs:
            kept = first / f"{planned.first}.safetensors"
            if board.entries[planned.name].state != WAITING or (planned.first in begun and not kept.exists()):
                continue
            begun.add(planned.first)
            started = go_on.remote(planned, kept.read_bytes()) if kept.exists() else begin.remote(planned)
            running[started] = planned, kept
            board.set(planned, RUNNING)
        if not running:
            return
        ready, _ = ray.wait(list(running), timeout=0.2)
        tick()
        for done in ready:
            planned, kept = running.pop(done)
            path = where[planned.name]
            try:
                files: dict[str, bytes] = ray.get(done)
            except ray.exceptions.RayError as error:
                write_text(path / FAILURE, f"{error}\n")
                board.set(planned, FAILED, problem=in_a_line(getattr(error, "cause", None) or error))
                continue
            if FIRST in files:
                _write(kept, files[FIRST])
                board.set(planned, WAITING)  # the rest of it, and all the others, beside each other
                continue
            for old in path.iterdir() if path.is_dir() else ():  # of a try that stopped: not to be mixed with this one
                if old.is_file():
                    old.unlink()
            for name in sorted(files, key=lambda name: name == "summary.json"):  # finished when all is there
                _write(path / name, files[name])
            board.set(planned, FINISHED, figure=_figure(path))


def _write(path: Path, data: bytes) -> None:
    with replacing(path, private=True) as temporary:
        temporary.write_bytes(data)


def _figure(path: Path) -> float | None:
    from coreplay.federated import RunFolder

    summary = RunFolder.open(path).summary()
    return None if summary is None else summary["metrics"][summary["metric"]][-1]


def _first_on_node(planned: Planned) -> dict[str, bytes]:
    """Train and measure the first period of a run; return the model after it."""
    with TemporaryDirectory() as folder:
        start = Path(folder) / FIRST

        def observer(event: Event) -> None:
            if start.exists():
                raise StoppedError

        with suppress(StoppedError):
            carry_out_one(_alone(planned), Path(folder) / "run", start, observer)
        return {FIRST: start.read_bytes()}


def _on_node(planned: Planned, first: bytes) -> dict[str, bytes]:
    """Carry out a run after its first period in a temporary folder; return the files that it left."""
    with TemporaryDirectory() as folder:
        path, start = Path(folder) / "run", Path(folder) / FIRST
        start.write_bytes(first)
        carry_out_one(_alone(planned), path, start, lambda event: None)
        return {entry.name: entry.read_bytes() for entry in path.iterdir() if entry.is_file()}


def _alone(planned: Planned) -> Planned:
    """Return the run on one worker."""
    config = planned.config
    engine = config.engine.model_copy(update={"workers": 1})
    return replace(planned, config=config.model_copy(update={"engine": engine}))
