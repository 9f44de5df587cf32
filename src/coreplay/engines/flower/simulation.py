"""A run on Flower's simulation: every client a node, Ray actors as processes."""

import os
import threading
from pathlib import Path
from typing import Any

from coreplay.engines.flower.environment import quiet
from coreplay.engines.flower.node import STATE
from coreplay.federated.config import Config
from coreplay.federated.events import Observer
from coreplay.federated.run import Run


def simulate(config: Config, folder: Path, prepared: Any, *, resume: bool, observer: Observer | None) -> Run:
    """Carry out a run on Ray, and stop everything that was started for it.

    Flower runs the server's part in a thread; when this one is interrupted, that one is told.
    """
    quiet()
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from coreplay.engines.flower.apps import client_app, conduct

    stop = threading.Event()
    found: list[Run] = []
    failed: list[BaseException] = []
    server = ServerApp()

    clients = len(prepared.stream.clients)
    given: dict[str, Any] = {"observer": observer, "prepared": prepared, "clients": clients, "stop": stop}
    workers = config.engine.workers or len(os.sched_getaffinity(0))
    given["window"] = 2 * workers  # enough to keep all actors busy

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            found.append(conduct(grid, config, folder, resume=resume, **given))
        except BaseException as error:
            failed.append(error)
            raise

    resources: Any = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workers, "log_to_driver": False}}
    before = os.environ.get(STATE)
    os.environ[STATE] = str(folder.absolute() / "clients")  # the actors inherit it
    try:
        run_simulation(server, client_app, clients, backend_config=resources)
    except BaseException:
        if failed:
            raise failed[0] from None
        raise
    finally:
        stop.set()
        if before is None:
            del os.environ[STATE]
        else:
            os.environ[STATE] = before
    return found[0]
