"""A run on Flower's simulation: one node per client, Ray actors as processes."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coreplay.flower.connection import quiet
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

    from coreplay.flower.app import client_app
    from coreplay.flower.engine import carry_out

    assets = prepared or prepare(config)
    clients = len(assets.stream.clients)
    workers = config.engine.workers or len(os.sched_getaffinity(0))
    stop, gone = threading.Event(), threading.Event()
    given: dict[str, Any] = {"observer": observer, "prepared": assets, "clients": clients, "stop": stop}
    given["max_in_flight"] = workers + 1  # enough to keep all actors busy
    result: Future[Run] = Future()
    ending = threading.Thread(target=_end_actors, args=(gone,), daemon=True)
    result.add_done_callback(lambda _: ending.start())
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            result.set_result(carry_out(grid, config, folder, resume=resume, **given))
        except BaseException as error:
            result.set_exception(error)
            raise

    resources: Any = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workers, "log_to_driver": False}}
    inherited = {STATE: str(folder.absolute() / "clients"), PLUGINS: "true"}  # by the actors, which are our own
    before = {name: os.environ[name] for name in inherited if name in os.environ}
    os.environ |= inherited
    try:
        with _forwarded(stop):
            run_simulation(server, client_app, clients, backend_config=resources)
    except BaseException:
        if stop.is_set():
            raise KeyboardInterrupt from None
        if result.done():
            result.result()
        raise
    finally:
        stop.set()
        gone.set()
        for name in inherited:
            del os.environ[name]
        os.environ |= before
    return result.result()


@contextmanager
def _forwarded(stop: threading.Event) -> Iterator[None]:
    """Let the first ctrl-C set `stop`, and the second interrupt as ever."""
    before = signal.getsignal(signal.SIGINT)
    heeded = callable(before) and threading.current_thread() is threading.main_thread()  # others get no signals

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop.set()

    if heeded:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if heeded:
            signal.signal(signal.SIGINT, before)


def _end_actors(gone: threading.Event) -> None:
    """When the server's part is over, end the actors that go on working: Flower would wait for them for ever."""
    while not gone.wait(GRACE):
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it reports each with a traceback
        for process in _busy_actors():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _busy_actors() -> Iterator[int]:
    """Return the processes under this one that answer a request: Ray calls them by what they do."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            title = (place / "cmdline").read_bytes()
            if title.startswith(b"ray::ClientAppActor.run") and os.getpid() in _ancestors(int(place.name)):
                yield int(place.name)


def _ancestors(process: int) -> Iterator[int]:
    while process:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        yield process
