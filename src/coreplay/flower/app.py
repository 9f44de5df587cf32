"""The two Flower apps of a run: a ClientApp that answers requests, and a ServerApp that carries out the run."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coreplay.errors import InputError
from coreplay.flower import resident
from coreplay.flower.messages import failure, is_shared, payload, read_request, to_record, wrap
from coreplay.flower.node import Node
from coreplay.runtime.requests import Reply

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
@client_app.evaluate()
@client_app.query("coreplay")
def handle(message: Message, context: Context) -> Message:
    """Let this node answer a request."""
    record = message.content
    reply: Reply
    try:
        node = Node.read(dict(context.node_config))
        if node.resident:  # it reads the request, and this process does not
            return Message(wrap(resident.ask(node, payload(record))), reply_to=message)
        from coreplay.flower.client import NodeClient

        request = read_request(record)
        with node.lock():
            reply = NodeClient(node, request.run).answer(request)
    except (InputError, EOFError, OSError) as error:
        reply = failure(error, read_request(record))
    return Message(to_record(reply, shared=is_shared(record)), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run that the run config names, in its folder; write its events to the file `events`, if any."""
    from coreplay.flower.engine import carry_out
    from coreplay.runtime import Config, RunFolder

    settings = context.run_config
    folder, resume = Path(str(settings["folder"])), bool(settings["resume"])
    ended: dict[str, Any] = {"state": "failed"}

    def tell(about: dict[str, Any]) -> None:
        if settings["events"]:
            with Path(str(settings["events"])).open("a", encoding="utf-8") as file:
                file.write(json.dumps(about, default=str) + "\n")

    try:
        config = Config.load(str(settings["config"]))
        if resume:  # the run's own configuration counts, except for the engine
            begun = RunFolder.open(folder).config()
            same = {"aggregation_groups": begun.engine.aggregation_groups}
            config = begun.model_copy(update={"engine": config.engine.model_copy(update=same)})
        carry_out(grid, config, folder, resume=resume, observer=lambda event: tell(asdict(event)))
        ended = {"state": "finished"}
    except BaseException as error:
        expected = isinstance(error, InputError | RuntimeError)
        ended["error"] = str(error) if expected else f"{type(error).__name__}: {error}"
        ended["expected"] = isinstance(error, InputError)
        raise
    finally:
        tell(ended)
