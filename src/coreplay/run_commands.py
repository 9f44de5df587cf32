"""`coreplay run` and `runs`. Thin; heavy imports are inside the commands."""

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreplay.data_commands import Json, Plugins, parse_options
from coreplay.display import duration, echo, following, show_markdown, without
from coreplay.errors import InputError

if TYPE_CHECKING:
    from coreplay.runtime import Config

Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder, from its last checkpoint.")]


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
    changes = parse_options(change or [], "--set")
    changes |= {"engine.name": engine} if engine is not None else {}
    changes |= {"engine.connection": connection} if connection is not None else {}
    if resume:
        config, folder = _resumed(file, output, preset, changes, plugin or [])
    else:
        from coreplay.runtime.api import default_name

        config = _config(file, preset, changes, plugin or [])
        folder = output or Path("runs") / default_name(config)
    if print_config:
        echo(config.toml(), nl=False)
        return
    from coreplay.runtime import run as carry_out
    from coreplay.runtime.api import finished

    summary = finished(folder) if resume else None
    if summary is not None:
        echo(f"the run in {folder} is finished already; this is its summary", err=True)
    else:
        with stoppable(folder, f"coreplay run --resume {folder}"), following("") as observer:
            summary = carry_out(config, folder, resume=resume, observer=observer).summary
    if as_json:
        echo(json.dumps({"folder": str(folder)} | summary))
    else:
        show_markdown(_told(summary))
        echo(f"written: {folder}")


def _config(file: Path | None, preset: str | None, changes: dict[str, Any], plugins: list[str]) -> "Config":
    from coreplay.runtime import Config

    if (file is None) == (preset is None):
        raise InputError("name a configuration file, or a preset with --preset small (not both)")
    if file is not None:
        return Config.load(file, changes, plugins=plugins)
    return Config.make({"preset": preset}, changes, plugins=plugins)


def _resumed(
    file: Path | None, output: Path | None, preset: str | None, changes: dict[str, Any], plugins: list[str]
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


def _told(summary: dict[str, Any]) -> str:
    """Return the figures after each period as a Markdown table."""
    name, metrics = summary["metric"], summary["metrics"]
    columns = [column for column in (name, "relative_change", "forgetting") if column in metrics]
    budget = "" if summary["budget"] is None else f", budget {summary['budget']}"
    lines = [
        f"Strategy {summary['strategy']}{budget}, seed {summary['seed']}: {name} on the test sets "
        "of all periods after each period; forgetting: how much worse it is on earlier periods than at its best.",
        "",
        "| period | " + " | ".join(column.replace("_", " ") for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    cells = [_cells(column, metrics[column]) for column in columns]
    for k, row in enumerate(zip(*cells, strict=True)):
        mark = "*" if str(k) in summary["missing"] else ""
        lines.append(f"| {k + 1}{mark} | " + " | ".join(row) + " |")
    for period, clients in summary["missing"].items():
        lines += ["", rf"\* After period {int(period) + 1}, measured on {without(clients)}."]
    seconds = ", ".join(f"{phase} {duration(spent)}" for phase, spent in summary["seconds"].items())
    sent = f"{summary['bytes_up'] / 1e6:.1f} MB up, {summary['bytes_down'] / 1e6:.1f} MB down"
    return "\n".join([*lines, "", f"Time: {seconds}. Exchanged: {sent}."]) + "\n"


def _cells(name: str, values: Sequence[float | None]) -> list[str]:
    from coreplay.report.html import column

    if name == "relative_change":
        return ["–" if value is None else f"{value:+.1%}" for value in values]
    return column(values)


def interrupt_once() -> None:
    """Ignore all interrupts after the first: `timeout -s INT` sends two, and the second would stop the cleaning up."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


@contextmanager
def stoppable(folder: Path, again: str) -> Iterator[None]:
    """Say how to go on when a run stops on the way: by ctrl-C, a failing client or a full disk."""
    from coreplay.files import disk_full
    from coreplay.runtime import EngineError

    def way_on() -> str:
        if folder.is_dir() and any(folder.iterdir()):
            return f"what is done is in {folder}; go on with: {again}"
        return "the run had not begun, and nothing is left of it: start it again with the same command"

    try:
        yield
    except KeyboardInterrupt:
        echo(f"interrupted: {way_on()}", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        if disk_full(error):
            echo(f"error: the disk is full ({error}); make room and go on with: {again}", err=True)
        elif isinstance(error, EngineError):
            echo(f"error: {error}\n{way_on()}", err=True)
        else:
            raise
        raise typer.Exit(1) from None


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, at any depth.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List runs: how far each is, its figure and its time.

    Example: `coreplay runs`

    Example: `coreplay runs demo --json`
    """
    from coreplay.report.html import clean, column
    from coreplay.runtime.run_index import list_runs

    found = list_runs(folder)
    if as_json:
        echo(json.dumps([run.to_json() for run in found]))
        return
    if not found:
        echo(f"no runs below {folder}")
        return
    lines = ["| run | strategy | budget | seed | state | figure | time |", "|---|---|---|---|---|---|---|"]
    figures: dict[str, str] = {}
    for metric in {run.metric for run in found}:
        some = [run for run in found if run.metric == metric and run.figure is not None]
        figures |= {
            run.name: f"{metric} {text}" for run, text in zip(some, column(r.figure for r in some), strict=True)
        }
    for run in found:
        state = run.state if run.period is None else f"{run.state}, period {run.period + 1}, round {run.round}"
        figure = figures.get(run.name, "") + ("*" if run.missing else "")
        spent = duration(run.seconds) if run.seconds is not None else ""
        cells = (run.name, run.strategy, run.budget, run.seed, state, figure, spent)
        lines.append("| " + " | ".join("" if cell is None else clean(cell) for cell in cells) + " |")
    show_markdown("\n".join(lines))
    for run in found:
        if run.missing:
            echo(clean(f"* {run.name}: measured on {without(run.missing)}"), err=True)
        if run.problem:
            echo(clean(f"{run.name}: {run.problem}"), err=True)
