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

if TYPE_CHECKING:
    from coreplay.runtime import Config

Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the folder from its last checkpoint.")]


def run(
    file: Annotated[Path | None, typer.Argument(help="The configuration; with --resume, the run's folder.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run.  [default: runs/NAME]")
    ] = None,
    resume: Resume = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: name=value; values may be JSON. Repeatable.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Instead of a file: small or paper.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="processes, serial, flower-simulation or flower.  [default: processes]")
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
    changes = parse_options(change, "--set")
    changes |= {"engine.name": engine} if engine is not None else {}
    changes |= {"engine.connection": connection} if connection is not None else {}
    if resume:
        config, folder = _resumed(file, output, preset, changes, plugin or ())
    else:
        from coreplay.runtime.api import default_name

        config = _config(file, preset, changes, plugin or ())
        folder = output or Path("runs") / default_name(config)
    if print_config:
        echo(config.toml(), nl=False)
        return
    from coreplay.report.text import run_table
    from coreplay.runtime import run as carry_out
    from coreplay.runtime.api import finished

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


def _config(file: Path | None, preset: str | None, changes: dict[str, Any], plugins: Iterable[str]) -> "Config":
    from coreplay.runtime import Config

    if (file is None) == (preset is None):
        raise InputError("name a configuration file, or a preset with --preset small (not both)")
    if file is not None:
        return Config.load(file, changes, plugins=plugins)
    return Config.make({"preset": preset}, changes, plugins=plugins)


def _resumed(
    file: Path | None, output: Path | None, preset: str | None, changes: dict[str, Any], plugins: Iterable[str]
) -> tuple["Config", Path]:
    """Find the run to go on with. It keeps its configuration, except for the engine."""
    from coreplay.plugins import check_same_plugins
    from coreplay.runtime import RunFolder

    if file is not None and file.is_dir() and output is not None:
        raise InputError(f"two folders to go on with: {str(file)!r} and {str(output)!r}; name one")
    given = file if file is not None and not file.is_dir() and (output is not None or file.suffix == ".toml") else None
    folder = output or (file if given is None else None)
    if given is not None or preset is not None:
        from coreplay.runtime.api import default_name

        wanted = _config(given, preset, changes, plugins)
        folder = folder or Path("runs") / default_name(wanted)
    elif folder is None:
        raise InputError("--resume needs the folder of a run: coreplay run --resume runs/NAME")
    kept = RunFolder.open(folder).config()
    if given is None and preset is None:
        wanted = type(kept).make(kept.model_dump(), changes, plugins=plugins)
    check_same_plugins(kept.plugins, wanted.plugins, folder)
    for section in type(kept).model_fields:
        old, new = getattr(kept, section), getattr(wanted, section)
        if section not in ("engine", "plugins") and old != new:
            raise InputError(
                f"the run in {str(folder)!r} was begun with another {section!r}: it goes on as it began, only engine "
                "values may change; choose another folder for a new run"
            )
    return wanted, folder


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
    from coreplay.report.text import clean, runs_table, which_test_sets
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
