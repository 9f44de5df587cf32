"""The two Flower apps of a run: a ClientApp that answers requests, and a ServerApp that carries out the run."""

import logging
from pathlib import Path
from threading import Event
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coreplay.errors import InputError
from coreplay.flower import resident
from coreplay.flower.messages import from_record, is_shared, payload, to_record, wrap
from coreplay.flower.node import Node
from coreplay.runtime.requests import Failed, Request

MAX_IN_FLIGHT = 64  # real clients work each for themselves: ask many at once

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
@client_app.evaluate()
@client_app.query("coreplay")
def handle(message: Message, context: Context) -> Message:
    """Let this node answer a request."""
    record = message.content
    try:
        node = Node.read(dict(context.node_config))
        if node.resident:  # it reads the request, and this process does not
            return Message(wrap(resident.ask(node, payload(record))), reply_to=message)
        reply = resident.respond_locked(node, _request(record))
    except (InputError, EOFError, OSError) as error:
        request = _request(record)
        logging.getLogger(__name__).exception("request %r got no answer", request.kind)
        reply = Failed(error=resident.reason(error)).answering(request, "")
    return Message(to_record(reply, shared=is_shared(record)), reply_to=message)


def _request(record: RecordDict) -> Request:
    request = from_record(record)
    if not isinstance(request, Request):
        raise InputError(f"a {request.kind} is not a request")
    return request


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run that the run config names, in its folder; say in the file `result`, if any, how it ended."""
    from coreplay.files import write_json
    from coreplay.runtime import Config, RunFolder

    settings = context.run_config
    folder = Path(str(settings["folder"]))
    result: dict[str, Any] = {"flower_run": str(context.run_id), "state": "failed"}
    try:
        if settings["resume"]:
            config = Config.make(_engine_of(RunFolder.open(folder).config(), str(settings["config"])))
        else:
            config = Config.load(str(settings["config"]))
        carry_out(grid, config, folder, resume=bool(settings["resume"]))
        result["state"] = "finished"
    except BaseException as error:
        expected = isinstance(error, InputError | RuntimeError)
        result["error"] = str(error) if expected else f"{type(error).__name__}: {error}"
        result["expected"] = isinstance(error, InputError)
        raise
    finally:
        if settings["result"]:
            write_json(str(settings["result"]), result)


def _engine_of(begun: Any, path: str) -> dict[str, Any]:
    """Return the configuration that a run was begun with, with the engine of another one."""
    from coreplay.runtime import Config

    wanted = Config.load(path).engine.model_dump() | {"aggregation_groups": begun.engine.aggregation_groups}
    data: dict[str, Any] = begun.model_dump() | {"engine": wanted}
    return data


def carry_out(
    grid: Grid,
    config: Any,
    folder: Path,
    *,
    resume: bool = False,
    observer: Any = None,
    prepared: Any = None,
    clients: int | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    stop: Event | None = None,
) -> Any:
    """Carry out a run over a grid, in a folder that is made for it or holds a run to go on with.

    It begins when `clients` are there; without that, when as many are as the configuration says.
    """
    import torch

    from coreplay.flower.engine import FlowerEngine
    from coreplay.runtime import Event as RunEvent
    from coreplay.runtime import RunFolder, Trainer, check, prepare
    from coreplay.runtime.events import Problem
    from coreplay.runtime.observers import watching

    torch.set_num_threads(1)
    assets = prepared or prepare(config)
    place = RunFolder.open(folder) if resume else RunFolder.create(folder, config)
    begun = place.checkpoint()
    period = begun.progress.period if begun else 0
    with watching(config, folder, observer) as watched:

        def observe(report: Any) -> None:
            if isinstance(report, Problem):
                watched(RunEvent("warning", period, 0, {"text": report.text}))

        most = config.engine.max_in_flight or max_in_flight
        engine = FlowerEngine(grid, config, folder, assets.task, period=period - 1, max_in_flight=most, stop=stop)
        engine.wait(clients or config.engine.min_clients, observe)
        check(config, engine.registry)
        return Trainer(config, assets.task, engine, place, assets.start, assets.trainable, watched).run()
