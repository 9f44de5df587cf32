"""Flower on real processes: a SuperLink with its SuperNodes on this machine, and runs launched on any SuperLink.

`Deployment` starts them and stops them again, whatever happens. It keeps everything in one folder, Flower's own
configuration too, and writes there how to reach it, so that `launch` and `flwr` find the connection.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from coreplay.errors import InputError
from coreplay.files import read_json, write_json, write_text
from coreplay.flower import certificates
from coreplay.flower.app_template import write_app
from coreplay.flower.connection import CONNECTION, Connection, environment
from coreplay.runtime.config import Config
from coreplay.runtime.engine import EngineError
from coreplay.runtime.events import Event, Observer
from coreplay.runtime.result import Run

READY = 60.0  # seconds until a SuperLink must answer
STOPPING = 10.0  # seconds that a process gets to end by itself
POLL_EVENTS, POLL_SUPERLINK = 0.3, 5.0  # seconds between two looks at a run's events, and at its status
MAX_UNANSWERED = 5  # commands in a row without an answer after which the SuperLink counts as gone


class Deployment:
    """A SuperLink and SuperNodes on loopback.

    Parameters
    ----------
    folder
        For logs, the clients' buffers, keys, and Flower's configuration.
    clients : int
        How many SuperNodes to start.
    tls : bool
        Encrypt, and let in only nodes whose keys are registered.
    port : int, optional
        Of the SuperLink; a free one if not given.
    plugins : bool
        Let the nodes run the plugins of a run: code that the server sends.
    """

    def __init__(
        self,
        folder: Path | str,
        clients: int = 3,
        *,
        tls: bool = False,
        port: int | None = None,
        plugins: bool = False,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.clients, self.tls, self.port, self.plugins = clients, tls, port or free_port(), plugins
        self.home = self.folder / "flwr"
        self.connection = Connection(CONNECTION, self.home)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Deployment":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start everything; if anything fails, stop what was started."""
        known = self.folder / "deployment.json"
        if known.exists() and _listens(str(read_json(known)["address"])):
            raise InputError(f"{str(self.folder)!r} holds a deployment that is running: stop it, or choose another")
        try:
            self._start("superlink", ["flower-superlink", "--port", str(self.port), *self._configure()])
            write_json(known, {"address": self.address, "clients": self.clients})
            self._until_ready()
            for k in range(self.clients):
                self.start_node(k)
        except BaseException:
            self.stop()
            raise

    def _configure(self) -> list[str]:
        """Write Flower's configuration, and return the options of a SuperLink."""
        (self.folder / "clients").mkdir(mode=0o700, parents=True, exist_ok=True)
        secure, options = "insecure = true", ["--insecure"]
        if self.tls:
            certificate, key = certificates.make(self.folder / "tls")
            secure = f"root-certificates = {json.dumps(str(certificate))}"
            options = [f"--ssl-{name}={certificate}" for name in ("ca-certfile", "certfile")]
            options += [f"--ssl-keyfile={key}", "--enable-supernode-auth", f"--database={self.folder / 'superlink.db'}"]
        about = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
        write_text(self.home / "config.toml", f"{about}{secure}\n")
        return options

    def _until_ready(self) -> None:
        until = time.monotonic() + READY
        while not _listens(self.address):
            code = self._processes["superlink"].poll()
            if code is not None:
                raise EngineError(f"the SuperLink ended with {code}: see {self.log('superlink')}")
            if time.monotonic() > until:
                raise EngineError(f"the SuperLink did not come up within {READY:g} s: see {self.log('superlink')}")
            time.sleep(0.2)

    def start_node(self, k: int) -> None:
        """Start a SuperNode, for the first time or again."""
        settings = {"state": str(self.folder / "clients"), "plugins": self.plugins}
        settings |= {"partition-id": k, "num-partitions": self.clients}
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        command = ["flower-supernode", "--superlink", self.address, "--port", str(free_port()), "--node-config", config]
        if self.tls:
            certificate, _ = certificates.make(self.folder / "tls")
            key = certificates.node_key(self.folder / "tls", k)
            if not key.with_suffix(".registered").exists():
                self.connection.ask("supernode", "register", str(key.with_suffix(".pub")), CONNECTION)
                key.with_suffix(".registered").touch()
            command += [f"--root-certificates={certificate}", f"--auth-supernode-private-key={key}"]
        else:
            command.append("--insecure")
        self._start(f"node-{k}", command)

    def kill_node(self, k: int) -> None:
        """Kill a SuperNode and what it started, at once."""
        process = self._processes.pop(f"node-{k}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> Path:
        """Return the log of a process, such as superlink or node-0."""
        return self.folder / "logs" / f"{name}.log"

    def running(self) -> list[str]:
        """Return the processes that are alive."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def _start(self, name: str, command: list[str]) -> None:
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            try:
                self._processes[name] = subprocess.Popen(
                    command,
                    env=environment(self.home),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # so that all it starts can be stopped with it
                )
            except FileNotFoundError:
                raise InputError(f"{command[0]!r} is not installed: install coreplay[flower]") from None

    def stop(self) -> None:
        """Stop all processes, by SIGTERM and then SIGKILL; none is left, also if ctrl-C comes once more."""
        try:
            self._signal(signal.SIGTERM)
            until = time.monotonic() + STOPPING
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.monotonic()))
        finally:
            self._signal(signal.SIGKILL)
            for process in self._processes.values():
                process.wait()
            self._processes = {}
            (self.folder / "deployment.json").unlink(missing_ok=True)

    def _signal(self, number: int) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, int(port))) == 0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
