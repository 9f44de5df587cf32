"""A run on Flower's simulation: one node per client, Ray actors as processes."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coreplay.flower.environment import quiet
from coreplay.flower.node import PLUGINS, STATE
from coreplay.runtime.api import Prepared, prepare
from coreplay.runtime.config import Config
from coreplay.runtime.events import Observer
from coreplay.runtime.result import Run

GRACE = 3.0  # seconds for the clients at work to end, once nobody waits for their answers


def launch(config: Config, folder: Path, prepared: Prepared | None, *, resume: bool, observer: Observer | None) -> Run:
    """Carry out a run on Ray, and stop everything that was started for it.

    Flower runs the server's part in a thread and clients in others, and hangs at times when it is interrupted between
    them. So ctrl-C only makes the server's part end, and Flower ends after it in its own order. Clients that are
    still at work then are not waited for.
    """
    quiet()
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from coreplay.flower.app import carry_out, client_app

    stop, over, gone = threading.Event(), threading.Event(), threading.Event()
    found: list[Run] = []
    failed: list[BaseException] = []
    server = ServerApp()

    assets = prepared or prepare(config)
    clients = len(assets.stream.clients)
    given: dict[str, Any] = {"observer": observer, "prepared": assets, "clients": clients, "stop": stop}
    workers = config.engine.workers or len(os.sched_getaffinity(0))
    given["max_in_flight"] = workers + 1  # enough to keep all actors busy

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            found.append(carry_out(grid, config, folder, resume=resume, **given))
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            over.set()

    resources: Any = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workers, "log_to_driver": False}}
    inherited = {STATE: str(folder.absolute() / "clients"), PLUGINS: "true"}  # by the actors, which are our own
    before = {name: os.environ.get(name) for name in inherited}
    os.environ |= inherited
    threading.Thread(target=_end_actors, args=(over, gone), daemon=True).start()
    try:
        with _forwarded(stop) as interrupted:
            run_simulation(server, client_app, clients, backend_config=resources)
    except BaseException:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        if failed:
            raise failed[0] from None
        raise
    finally:
        for event in (stop, gone, over):
            event.set()
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
    return found[0]


@contextmanager
def _forwarded(stop: threading.Event) -> Iterator[threading.Event]:
    """Let the first ctrl-C set `stop` and what this gives, and the second interrupt as ever."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        interrupted.set()
        stop.set()

    if callable(before):
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        if callable(before):
            signal.signal(signal.SIGINT, before)


def _end_actors(over: threading.Event, gone: threading.Event) -> None:
    """When the server's part is over, end the actors that go on working: Flower would wait for them for ever."""
    over.wait()
    while not gone.wait(GRACE):
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it reports each with a traceback
        for process in _busy_actors():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _busy_actors() -> list[int]:
    """Return the processes under this one that answer a request: Ray calls them by what they do."""
    parents: dict[int, int] = {}
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title, state = (place / "cmdline").read_bytes(), (place / "stat").read_text()
        except OSError:  # it has ended
            continue
        parents[int(place.name)] = int(state.rpartition(")")[2].split()[1])
        if title.startswith(b"ray::ClientAppActor.run"):
            found.append(int(place.name))
    return [process for process in found if os.getpid() in _above(process, parents)]


def _above(process: int, parents: dict[int, int]) -> Iterator[int]:
    while process in parents:
        process = parents[process]
        yield process
