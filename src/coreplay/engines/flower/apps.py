"""The two Flower apps of a run: a ClientApp that answers letters, and a ServerApp that conducts the run."""

import logging
from pathlib import Path
from threading import Event
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coreplay.engines.flower import keeper
from coreplay.engines.flower.letters import Letter, is_shared
from coreplay.engines.flower.node import Node, RefusedError
from coreplay.errors import InputError

WINDOW = 64  # real clients work each for themselves: ask many at once

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
@client_app.evaluate()
@client_app.query("coreplay")
def handle(message: Message, context: Context) -> Message:
    """Let this node answer a letter."""
    letter = Letter.from_record(message.content)
    try:
        node = Node.read(dict(context.node_config))
        reply = keeper.ask(node, letter) if node.resident else keeper.respond_alone(node, letter)
    except (InputError, EOFError, OSError) as error:
        logging.getLogger(__name__).exception("letter %r got no answer", letter.act)
        told = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}; its log says more"
        reply = letter.reply("", {"error": told})
    return Message(reply.to_record(shared=is_shared(message.content)), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the run that the run config names, in its folder; say in the file `result`, if any, how it ended."""
    from coreplay.federated import Config, RunFolder
    from coreplay.files import write_json

    settings = context.run_config
    folder = Path(str(settings["folder"]))
    result: dict[str, Any] = {"flower_run": str(context.run_id), "state": "failed"}
    try:
        if settings["resume"]:
            config = Config.make(_engine_of(RunFolder.open(folder).config(), str(settings["config"])))
        else:
            config = Config.load(str(settings["config"]))
        conduct(grid, config, folder, resume=bool(settings["resume"]))
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
    from coreplay.federated import Config

    wanted = Config.load(path).engine.model_dump() | {"aggregation_groups": begun.engine.aggregation_groups}
    data: dict[str, Any] = begun.model_dump() | {"engine": wanted}
    return data


def conduct(
    grid: Grid,
    config: Any,
    folder: Path,
    *,
    resume: bool = False,
    observer: Any = None,
    prepared: Any = None,
    clients: int | None = None,
    max_in_flight: int = WINDOW,
    stop: Event | None = None,
) -> Any:
    """Carry out a run over a grid, in a folder that is made for it or holds a run to go on with.

    It begins when `clients` are there; without that, when as many are as the configuration says.
    """
    import torch

    from coreplay.engines.api import prepare
    from coreplay.engines.flower.engine import FlowerEngine
    from coreplay.federated import Conductor, RunFolder, check
    from coreplay.federated import Event as RunEvent
    from coreplay.federated.watching import watching

    torch.set_num_threads(1)
    things = prepared or prepare(config)
    place = RunFolder.open(folder) if resume else RunFolder.create(folder, config)
    begun = place.checkpoint()
    period = begun.progress.period if begun else 0
    with watching(config, folder, observer) as watched:

        def watch(facts: Any) -> None:
            watched(RunEvent("warning", period, 0, facts))

        engine = FlowerEngine(
            grid,
            config,
            folder,
            things.task,
            period=period - 1,
            max_in_flight=config.engine.max_in_flight or max_in_flight,
            stop=stop,
        )
        engine.wait(clients or config.engine.min_clients, watch)
        check(config, engine.roll)
        return Conductor(config, engine.roll, things.task, engine, place, things.start, things.trainable, watched).run()
