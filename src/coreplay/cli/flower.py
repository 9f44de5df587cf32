"""`coreplay flower`: a deployment on this machine, and an app to start from."""

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from coreplay.cli import Command
from coreplay.cli.progress import echo
from coreplay.errors import InputError

app = typer.Typer(
    help="Runs on Flower: a deployment on this machine, and an app to start from.",
    no_args_is_help=True,
    suggest_commands=False,
)


@app.command(cls=Command)
def up(
    clients: Annotated[int, typer.Option(min=1, help="Number of SuperNodes to start, one per client.")] = 3,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for logs, buffers, keys and Flower's configuration.")
    ] = Path("deployment"),
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt connections, and accept only SuperNodes whose keys are registered.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="Port of the SuperLink.  [default: a free one]")] = None,
    plugins: Annotated[
        bool, typer.Option("--plugins", help="Let SuperNodes run the plugins of a run: code that the server sends.")
    ] = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine; ctrl-C stops them all.

    Example: `coreplay flower up --clients 3`

    Example: `coreplay flower up --clients 5 --tls -o secure`
    """
    _needed()
    from coreplay.flower.deployment import Deployment
    from coreplay.runtime import EngineError

    deployment = Deployment(output, clients, tls=tls, port=port, plugins=plugins)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal or a service manager stops it like ctrl-C
        signal.signal(number, signal.default_int_handler)
    try:
        with deployment:
            echo(f"SuperLink at {deployment.address} with {clients} SuperNodes; logs in {output / 'logs'}")
            echo(f"run on it: coreplay run run.toml --engine flower --connection {output}")
            echo("stop it: ctrl-C")
            there = set(deployment.running())
            while "superlink" in there:
                time.sleep(1.0)
                for name in sorted(there - set(deployment.running())):
                    echo(f"{name} has ended: see {deployment.log(name)}", err=True)
                there = set(deployment.running())
            echo(f"error: the SuperLink has ended: see {deployment.log('superlink')}", err=True)
            raise typer.Exit(1)
    except KeyboardInterrupt:
        echo("stopped", err=True)
    except EngineError as error:
        echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command(cls=Command)
def init(folder: Annotated[Path, typer.Argument(help="A new or empty folder.")]) -> None:
    """Write a complete Flower app that carries out a run: change it as you like, start it with `flwr run`.

    Example: `coreplay flower init my-app`
    """
    _needed()
    from coreplay.flower.launch import write_app

    name = "".join(character if character.isalnum() else "-" for character in folder.absolute().name.lower()).strip("-")
    for path in write_app(folder, name or "coreplay-run"):
        echo(f"written: {path}")
    echo(f'start it: flwr run {folder} CONNECTION --run-config \'config="/path/run.toml" folder="/path/run"\'')


def _needed() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise InputError("Flower is not installed: install coreplay with its extra, coreplay[flower]")
