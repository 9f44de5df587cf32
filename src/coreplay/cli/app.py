"""`coreplay`: all commands, the lists of what is registered, and how errors and warnings are shown."""

import json
import signal
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer

from coreplay import __version__
from coreplay.cli import Command, Json, Plugins, data, flower, load_plugins, run, select, sweep
from coreplay.cli.progress import echo
from coreplay.errors import InputError

_LISTS = {  # command: what it lists, and the function that returns names with descriptions
    "selectors": ("selectors, which a client chooses with alone", "coreplay.selection", "selectors"),
    "coordination-methods": (
        "coordination methods, by which clients choose jointly",
        "coreplay.coordination",
        "coordination_methods",
    ),
    "strategies": ("strategies of a run: what a buffer keeps", "coreplay.runtime.strategy", "strategies"),
    "algorithms": ("federated algorithms", "coreplay.learning.hooks", "algorithms"),
    "continual-methods": (
        "continual methods, by which a client learns without forgetting",
        "coreplay.learning",
        "continual_methods",
    ),
    "tasks": ("tasks", "coreplay.tasks", "tasks"),
    "trackers": ("trackers, which also receive the metrics of a run", "coreplay.runtime.tracker", "trackers"),
}
_python_shows = warnings.showwarning

app = typer.Typer(
    name="coreplay",
    help="Continual federated learning with coordinated replay: clients choose jointly what to remember.",
    epilog="Start with: coreplay demo",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
for command in (sweep.demo, run.run, run.runs, sweep.sweep, sweep.report, select.select, select.coordinate):
    app.command(cls=Command)(command)
app.command("near-optimality", cls=Command)(select.near_optimality)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")


def add_list(to: typer.Typer, name: str, what: str, module: str, function: str) -> None:
    """Add a command that lists what is registered."""
    full = f"coreplay {name}" if to is app else f"coreplay data {name}"

    @to.command(name, cls=Command, help=f"List the {what}.\n\nExample: `{full}`")
    def show(plugin: Plugins = None, as_json: Json = False) -> None:
        load_plugins(plugin)
        known: dict[str, str] = getattr(import_module(module), function)()
        width = max(map(len, known), default=0)
        lines = "\n".join(f"{name:<{width}}  {text}" for name, text in sorted(known.items()))
        echo(json.dumps(known) if as_json else lines)


for name, about in _LISTS.items():
    add_list(app, name, *about)
add_list(data.app, "sources", "sources of streams", "coreplay.data", "sources")


def main() -> None:
    """Run the command line; wrong input ends with exit code 2 and one line on standard error."""
    warnings.showwarning = _show_warning
    _interrupt_once()
    try:
        app()
    except InputError as error:
        echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        echo("interrupted", err=True)
        sys.exit(130)
    except OSError as error:
        echo(f"error: {error}", err=True)
        sys.exit(1)


def _interrupt_once() -> None:
    """Ignore all interrupts after the first: `timeout -s INT` sends two, and the second would stop the cleaning up."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Show our own warnings in one line, and others as Python does."""
    from coreplay.data import DataWarning
    from coreplay.registry import PluginWarning

    if issubclass(category, DataWarning | PluginWarning):
        echo(f"warning: {message}", err=True)
    else:
        _python_shows(message, category, *place, **more)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"coreplay {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
