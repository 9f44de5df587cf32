"""Runs on any SuperLink: a Flower app for the run is submitted, and its events are followed until it ends."""

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from coreplay.errors import InputError
from coreplay.files import write_text
from coreplay.flower.connection import Connection
from coreplay.runtime.config import Config
from coreplay.runtime.engine import EngineError
from coreplay.runtime.events import Event, Observer
from coreplay.runtime.result import Run

POLL_EVENTS, POLL_SUPERLINK = 0.3, 5.0  # seconds between two looks at a run's events, and at its status
MAX_UNANSWERED = 5  # commands in a row without an answer after which the SuperLink counts as gone

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Continual federated learning with coordinated replay"
license = "Apache-2.0"
dependencies = []  # empty on purpose: Flower would install them on every machine; coreplay is installed beside flwr

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "coreplay"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
folder = "run"        # where the server keeps the run
config = "run.toml"   # the run's configuration, on the server's machine
resume = false
events = ""           # a file for the run's events, one per line, if somebody follows it
"""

_MODULE = """\
# The {kind}'s part of a coreplay run.
from coreplay.flower import {kind}_app as app

__all__ = ["app"]
"""


def write_app(folder: Path, name: str = "coreplay-run") -> list[Path]:
    """Write the app into a new or empty folder, and return its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} exists and is not empty: choose another folder")
    texts = {f"{kind}_app.py": _MODULE.format(kind=kind) for kind in ("server", "client")}
    texts["pyproject.toml"] = _PROJECT.format(name=name)
    for file, text in texts.items():
        write_text(folder / file, text)
    return [folder / file for file in texts]


def launch(
    config: Config, folder: Path, prepared: Any = None, *, resume: bool = False, observer: Observer | None = None
) -> Run:
    """Let a SuperLink carry out a run, in a folder on its machine, and follow it there until it ends.

    The SuperLink's machine must share the folder with this one. On ctrl-C the run is stopped.
    """
    connection = Connection.find(config.engine.connection)
    folder = folder.absolute()
    config = _absolute(config, max(config.engine.min_clients, connection.clients))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        app, given, events = (Path(temporary) / name for name in ("app", "run.toml", "events.jsonl"))
        write_app(app)
        write_text(given, config.toml())
        events.touch()
        settings = {"folder": str(folder), "config": str(given), "resume": resume, "events": str(events)}
        write_text(app / "settings.toml", "".join(f"{name} = {json.dumps(v)}\n" for name, v in settings.items()))
        number = _begin(connection, app)
        try:
            ended = _follow(connection, number, events, observer)
        except BaseException:
            _end(connection, number)
            raise
    if ended["state"] != "finished":
        raise (InputError if ended["expected"] else EngineError)(ended["error"])
    return Run.load(folder)


def _absolute(config: Config, clients: int) -> Config:
    """Return the configuration for another process: start with `clients` clients, absolute paths."""
    options = dict(config.stream.options)
    if "path" in options and Path(str(options["path"])).exists():
        options["path"] = str(Path(str(options["path"])).absolute())
    changed: dict[str, Any] = {
        "stream": config.stream.model_copy(update={"options": options}),
        "engine": config.engine.model_copy(update={"min_clients": clients}),
        "baseline": None if config.baseline is None else str(Path(config.baseline).absolute()),
    }
    return config.model_copy(update=changed)


def _begin(connection: Connection, app: Path) -> str:
    """Start a run and return its number; when interrupted, still wait for the number, to stop what may have begun."""
    with ThreadPoolExecutor(1) as pool:
        settings = str(app / "settings.toml")
        call = pool.submit(connection.ask, "run", str(app), connection.name, "--run-config", settings)
        try:
            return str(call.result()["run-id"])
        except KeyboardInterrupt:
            with suppress(EngineError):
                _end(connection, str(call.result()["run-id"]))
            raise


def _end(connection: Connection, number: str) -> None:
    with suppress(EngineError):  # it has ended, or the SuperLink has
        connection.ask("stop", number, connection.name, timeout=30.0)


def _follow(connection: Connection, number: str, events: Path, observer: Observer | None) -> dict[str, Any]:
    """Report the run's events as they are written, and return the last line: how it ended."""
    line, status, unanswered, asked = "", "", 0, time.monotonic()
    with events.open(encoding="utf-8") as file:
        while True:
            line += file.readline()
            if line.endswith("\n"):
                found, line = json.loads(line), ""
                if "state" in found:
                    return dict(found)
                if observer is not None:
                    observer(Event(**found))
            elif status.startswith("finished"):
                raise EngineError(f"Flower ended run {number} ({status}) before it began: see the SuperLink's log")
            elif time.monotonic() - asked > POLL_SUPERLINK:
                asked = time.monotonic()
                try:
                    runs = connection.ask("ls", connection.name, "--run-id", number)["runs"]
                    status, unanswered = str(runs[0]["status"]) if runs else "unknown", 0
                except EngineError:
                    unanswered += 1
                    if unanswered == MAX_UNANSWERED:
                        raise
            else:
                time.sleep(POLL_EVENTS)
