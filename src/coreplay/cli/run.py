"""`coreplay run` and `runs`."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreplay.cli import Json, Plugins, load_plugins, parse_options
from coreplay.cli.progress import echo, following, show_markdown
from coreplay.errors import InputError
from coreplay.report.text import clean, run_table, runs_table, which_test_sets

if TYPE_CHECKING:
    from coreplay.runtime import Config


def run(
    file: Annotated[Path | None, typer.Argument(help="The configuration; with --resume, the run's folder.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run.  [default: runs/NAME]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder from its last checkpoint.")
    ] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: name=value; values may be JSON. Repeatable.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Instead of a file: small or paper.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, processes, serial, flower-simulation or flower.  [default: auto]")
    ] = None,
    connection: Annotated[
        str | None, typer.Option(help="flower: folder of `coreplay flower up`, or a connection's name.")
    ] = None,
    plugin: Plugins = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the configuration as resolved, with comments, and stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train over all periods with replay, and measure what is forgotten.

    Every random choice comes from the seed: results are the same for any number of workers, and after an interruption.

    Example: `coreplay run --preset small --set replay.budget=10 -o runs/first`

    Example: `coreplay run run.toml --set replay.strategy=none --set seed=1`

    Example: `coreplay run --resume runs/first`

    Example: `coreplay run run.toml --engine flower --connection deployment`
    """
    from coreplay.runtime import Config
    from coreplay.runtime import run as carry_out
    from coreplay.runtime.api import default_name, finished

    changes = parse_options(change, "--set")
    changes |= {"engine.name": engine} if engine is not None else {}
    changes |= {"engine.connection": connection} if connection is not None else {}
    if resume and preset is not None:
        raise InputError("--preset is for a new run: leave it out, or --resume")
    if resume:
        folder = folder_to_resume(file, output, "coreplay run --resume runs/NAME")
        config = _resumed(folder, changes, plugin or ())
    elif (file is None) == (preset is None):
        raise InputError("name a configuration file, or a preset with --preset small (not both)")
    elif file is not None:
        config = Config.load(file, changes, plugins=plugin or ())
    else:
        config = Config.make({"preset": preset}, changes, plugins=plugin or ())
    if not resume:
        folder = output or Path("runs") / default_name(config)
    if print_config:
        echo(config.toml(), nl=False)
        return
    summary = finished(folder) if resume else None
    if summary is not None:
        echo(f"the run in {folder} is finished already; this is its summary", err=True)
    else:
        with stoppable(folder, f"coreplay run --resume {folder}"), following() as observer:
            summary = carry_out(config, folder, resume=resume, observer=observer).summary
    if as_json:
        echo(json.dumps({"folder": str(folder)} | summary))
    else:
        show_markdown(run_table(summary))
        echo(f"written: {folder}")


def folder_to_resume(file: Path | None, output: Path | None, example: str) -> Path:
    """Return the folder that --resume goes on with, which is the argument or --output."""
    if file is not None and output is not None:
        raise InputError(
            f"--resume goes on with what the folder {str(output)!r} holds: leave out {str(file)!r}, or --resume"
        )
    folder = output or file
    if folder is None:
        raise InputError(f"--resume needs a folder: {example}")
    return folder


def _resumed(folder: Path, changes: dict[str, Any], plugins: Iterable[str]) -> "Config":
    """Return the configuration of a run to go on with: its own, except for the engine."""
    from coreplay.plugins import check_same_plugins
    from coreplay.runtime import Config, RunFolder

    kept = RunFolder.open(folder).config()
    wanted = Config.make(kept.model_dump(), changes, plugins=plugins)
    check_same_plugins(kept.plugins, wanted.plugins, folder)
    for section in Config.model_fields:
        if section not in ("engine", "plugins") and getattr(kept, section) != getattr(wanted, section):
            raise InputError(
                f"the run in {str(folder)!r} was begun with another {section!r}: it goes on as it began, only engine "
                "values may change; choose another folder for a new run"
            )
    return wanted


@contextmanager
def stoppable(folder: Path, again: str) -> Iterator[None]:
    """Say how to go on when a run stops on the way: by ctrl-C, a failing client or a full disk."""
    from coreplay.files import disk_full
    from coreplay.runtime import EngineError

    def way_on() -> str:
        if folder.is_dir() and any(folder.iterdir()):
            return f"results so far are in {folder}; continue with: {again}"
        return "the run had not started: run the same command again"

    try:
        yield
    except KeyboardInterrupt:
        echo(f"interrupted: {way_on()}", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        if disk_full(error):
            echo(f"error: the disk is full ({error}); make room and continue with: {again}", err=True)
        elif isinstance(error, EngineError):
            echo(f"error: {error}\n{way_on()}", err=True)
        else:
            raise
        raise typer.Exit(1) from None


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, at any depth.")] = Path("runs"),
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """List runs with their state, figure and time.

    Example: `coreplay runs`

    Example: `coreplay runs demo --json`
    """
    from coreplay.runtime.run_index import list_runs

    load_plugins(plugin)
    found = list_runs(folder)
    if as_json:
        echo(json.dumps([run.to_json() for run in found]))
        return
    if not found:
        echo(f"no runs below {folder}")
        return
    show_markdown(runs_table(found))
    for run in found:
        if run.missing:
            echo(clean(f"* {run.name}: measured on {which_test_sets(run.missing)}"), err=True)
        if run.problem:
            echo(clean(f"{run.name}: {run.problem}"), err=True)
