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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.errors import InputError
from coreplay.files import read_json, write_json, write_text
from coreplay.flower import certificates
from coreplay.flower.app_template import write_app
from coreplay.flower.environment import environment
from coreplay.runtime.config import Config
from coreplay.runtime.engine import EngineError
from coreplay.runtime.events import Event, Observer
from coreplay.runtime.result import Run

CONNECTION = "coreplay"
READY = 60.0  # seconds until a SuperLink must answer
STOPPING = 10.0  # seconds that a process gets to end by itself
POLL_FOLDER, POLL_SUPERLINK = 0.3, 5.0  # seconds between two checks of a run's folder, and of its status
ANSWER = 120.0  # seconds that the SuperLink has for an answer
MAX_UNANSWERED = 5  # commands in a row without an answer after which the SuperLink counts as gone


@dataclass(frozen=True)
class Connection:
    """How Flower's command reaches a SuperLink: the connection's name, and the folder with Flower's configuration."""

    name: str
    home: Path | None
    clients: int = 1  # SuperNodes that were started with it

    @classmethod
    def find(cls, connection: str | None) -> "Connection":
        """Find the connection by a folder of `coreplay flower up`, or a name in Flower's own configuration."""
        if not connection:
            raise InputError(
                "engine 'flower' needs engine.connection (--connection): the folder of `coreplay flower up`, or a "
                "connection's name in Flower's configuration"
            )
        home = Path(connection) / "flwr"
        if home.is_dir():
            about = Path(connection) / "deployment.json"
            if not about.exists():
                raise InputError(f"the deployment in {connection!r} is not running: start it with coreplay flower up")
            return cls(CONNECTION, home.absolute(), int(read_json(about)["clients"]))
        if "/" in connection:
            raise InputError(f"connection {connection!r}: there is no deployment in that folder")
        return cls(connection, None)

    def ask(self, *arguments: str, timeout: float = ANSWER) -> Any:
        """Call `flwr` and return what it prints, read as JSON."""
        with FlwrCommand(self, arguments) as call:
            return call.answer(timeout)


class FlwrCommand:
    """A running `flwr` command, which ctrl-C does not reach: the caller waits for it or ends it."""

    def __init__(self, connection: Connection, arguments: Sequence[str]) -> None:
        self._name = f"`flwr {arguments[0]}`"
        self._process = subprocess.Popen(
            ["flwr", *arguments, "--format", "json"],
            env=environment(connection.home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "FlwrCommand":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def answer(self, timeout: float = ANSWER) -> Any:
        """Return what it prints, read as JSON; may be asked again after an interruption."""
        try:
            output, errors = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self._name} did not answer within {timeout:g} s") from None
        try:
            found = json.loads(output)
        except ValueError:
            found = {"success": False}
        if self._process.returncode or not found.get("success", True):
            reason = str(found.get("error-message") or (errors + output).strip() or "no reason given")
            raise EngineError(f"{self._name} failed: {reason.strip().splitlines()[-1][:300]}")
        return found


class Deployment:
    """A SuperLink and SuperNodes on loopback.

    Parameters
    ----------
    folder
        For logs, the clients' buffers, keys, and Flower's configuration.
    clients : int or list of node configs
        How many SuperNodes to start, with partition-id 0, 1, …; or the node config of each.
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
        clients: int | Sequence[dict[str, Any]] = 3,
        *,
        tls: bool = False,
        port: int | None = None,
        plugins: bool = False,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.nodes = (
            [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
            if isinstance(clients, int)
            else [dict(node) for node in clients]
        )
        self.tls, self.port, self.plugins = tls, port or free_port(), plugins
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
        if (self.folder / "deployment.json").exists():
            found = read_json(self.folder / "deployment.json")
            if _alive(int(found["superlink"])):
                raise InputError(f"{str(self.folder)!r} holds a deployment that is running: stop it, or choose another")
        try:
            self._configure()
            self._start("superlink", ["flower-superlink", "--port", str(self.port), *self._link_options()])
            about = {"superlink": self._processes["superlink"].pid, "address": self.address, "clients": len(self.nodes)}
            write_json(self.folder / "deployment.json", about)
            self._until_ready()
            for k in range(len(self.nodes)):
                self.start_node(k)
        except BaseException:
            self.stop()
            raise

    def _configure(self) -> None:
        (self.folder / "clients").mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = [f'[superlink]\ndefault = "{CONNECTION}"\n', f"[superlink.{CONNECTION}]", f'address = "{self.address}"']
        if self.tls:
            certificates.make(self.folder / "tls")
            lines.append(f"root-certificates = {json.dumps(str(self.folder / 'tls' / 'ca.crt'))}")
        else:
            lines.append("insecure = true")
        write_text(self.home / "config.toml", "\n".join(lines) + "\n")

    def _link_options(self) -> list[str]:
        if not self.tls:
            return ["--insecure"]
        keys = self.folder / "tls"
        return [
            f"--ssl-ca-certfile={keys / 'ca.crt'}",
            f"--ssl-certfile={keys / 'server.crt'}",
            f"--ssl-keyfile={keys / 'server.key'}",
            "--enable-supernode-auth",
            f"--database={self.folder / 'superlink.db'}",
        ]

    def _until_ready(self) -> None:
        until = time.monotonic() + READY
        while True:
            self._check("superlink")
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if time.monotonic() > until:
                raise EngineError(f"the SuperLink did not come up within {READY:g} s: see {self.log('superlink')}")
            time.sleep(0.2)

    def start_node(self, k: int, *, register: bool = True) -> None:
        """Start a SuperNode, for the first time or again."""
        settings = {"state": str(self.folder / "clients"), "plugins": self.plugins} | self.nodes[k]
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        command = ["flower-supernode", "--superlink", self.address, "--port", str(free_port()), "--node-config", config]
        if self.tls:
            key = certificates.node_key(self.folder / "tls", k)
            if register and not key.with_suffix(".registered").exists():
                self.connection.ask("supernode", "register", str(key.with_suffix(".pub")), CONNECTION)
                key.with_suffix(".registered").touch()
            command += [f"--root-certificates={self.folder / 'tls' / 'ca.crt'}", f"--auth-supernode-private-key={key}"]
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

    def _check(self, name: str) -> None:
        code = self._processes[name].poll()
        if code is not None:
            raise EngineError(f"{name} ended with {code}: see {self.log(name)}")

    def stop(self) -> None:
        """Stop all processes, by SIGTERM and then SIGKILL; none is left, also if ctrl-C comes once more."""
        try:
            self._terminate()
        finally:
            for process in self._processes.values():
                _signal(process, signal.SIGKILL)
                process.wait()
            self._processes = {}
            (self.folder / "deployment.json").unlink(missing_ok=True)

    def _terminate(self) -> None:
        for process in self._processes.values():
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + STOPPING
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


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
        app = Path(temporary) / "app"
        write_app(app)
        wanted, result = Path(temporary) / "run.toml", Path(temporary) / "result.json"
        wanted.write_text(config.toml(), encoding="utf-8")
        settings = {"folder": str(folder), "config": str(wanted), "resume": resume, "result": str(result)}
        given = app / "settings.toml"
        write_text(given, "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        number = _begin(connection, app, given)
        try:
            _follow(connection, number, folder, result, observer)
        except BaseException:
            _end(connection, number)
            raise
        ended = read_json(result)
    if ended["state"] != "finished":
        raise (InputError if ended.get("expected") else EngineError)(ended.get("error", "no reason given"))
    return Run.load(folder)


def _begin(connection: Connection, app: Path, settings: Path) -> str:
    """Start a run and return its number; when interrupted, still wait for the number, to stop what may have begun."""
    with FlwrCommand(connection, ["run", str(app), connection.name, "--run-config", str(settings)]) as call:
        try:
            return str(call.answer()["run-id"])
        except KeyboardInterrupt:
            with suppress(EngineError):
                _end(connection, str(call.answer()["run-id"]))
            raise


def _end(connection: Connection, number: str) -> None:
    with suppress(EngineError):  # it has ended, or the SuperLink has
        connection.ask("stop", number, connection.name, timeout=30.0)


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


def _follow(connection: Connection, number: str, folder: Path, result: Path, observer: Observer | None) -> None:
    """Report to the observer what the run's log says, until the result is there."""
    log, unanswered, asked = folder / "run.log", 0, time.monotonic()
    at = log.stat().st_size if log.exists() else 0
    while True:
        ended = result.exists()
        if log.exists():
            with log.open(encoding="utf-8") as file:
                file.seek(at)
                for line in file:
                    if not line.endswith("\n"):
                        break
                    at += len(line.encode("utf-8"))
                    if observer is not None:
                        _report(observer, line)
        if ended:
            return
        if time.monotonic() - asked > POLL_SUPERLINK:
            asked = time.monotonic()
            try:
                runs = connection.ask("ls", connection.name, "--run-id", number)["runs"]
                unanswered = 0
            except EngineError:
                unanswered += 1
                if unanswered == MAX_UNANSWERED:
                    raise
                continue
            status = str(runs[0]["status"]) if runs else "unknown"
            if status.startswith("finished") and not result.exists():
                raise EngineError(f"Flower ended run {number} ({status}) before it began: see the SuperLink's log")
        time.sleep(POLL_FOLDER)


def _report(observer: Observer, line: str) -> None:
    """Make an event of a line of the log."""
    _, kind, text = line.rstrip("\n").split(" ", 2)
    facts = json.loads(text)
    if "period" in facts:
        observer(Event(kind, facts.pop("period"), facts.pop("round", 0), facts))
