"""`coreplay sweep` and `demo`: many runs, a live table of how far they are, and for the demo a report."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreplay.data_commands import Json, Plugins
from coreplay.display import duration, echo, printable, show_markdown
from coreplay.errors import InputError
from coreplay.run_commands import stoppable

if TYPE_CHECKING:
    from coreplay.experiments.scheduler import RunStatus, SweepStatus
    from coreplay.experiments.sweep import Planned, Sweep


def sweep(
    file: Annotated[Path | None, typer.Argument(help="What to compare; with --resume, the sweep's folder.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the sweep.  [default: sweeps/NAME]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in the folder.")] = False,
    processes: Annotated[int | None, typer.Option(help="Runs at a time.  [default: one a core]", min=1)] = None,
    plugin: Plugins = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Compare strategies, budgets, seeds and anything else of the configuration, in many runs.

    The same command again goes on where it was stopped; with more strategies, budgets or seeds in the file it adds
    their runs. A run that fails is shown with its reason and does not stop the others.

    Example: `coreplay sweep sweep.toml -o sweeps/first`

    Example: `coreplay sweep --resume sweeps/first`
    """
    from coreplay.experiments.scheduler import SweepStatus, find_finished, run_sweep
    from coreplay.experiments.sweep import Sweep
    from coreplay.files import alone_in

    folder, source = _found(file, output, resume)
    plan = Sweep.load(source, plugins=plugin or [])
    if dry_run:
        names = [planned.name for planned in plan.runs]
        echo(json.dumps(names) if as_json else "\n".join(names))
        return
    with _showing(plan) as (changed, show), stoppable(folder, f"coreplay sweep --resume {folder}"):
        status = SweepStatus(plan.runs, changed)
        with alone_in(folder):  # a folder with other runs, or at work, is refused before its plan is replaced
            find_finished(status, folder)
            _keep(plan, source, folder)
        run_sweep(status, folder, workers=processes, tick=lambda: show(status))
    failures = status.failures()
    if as_json:
        echo(json.dumps({"folder": str(folder), "runs": status.counts(), "failures": failures}))
    else:
        show_markdown(table(status))
        echo(f"written: {folder}; look at it with: coreplay report {folder} -o {folder / 'report'}")
    for name, problem in failures.items():
        echo(f"failed: {name}: {problem}", err=True)
    if failures:
        raise typer.Exit(1)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for runs and results.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """Compare strategies of replay on a small synthetic stream, in under three minutes, with a table and a page.

    What is in the folder already is not done again.

    Example: `coreplay demo`
    """
    from coreplay.experiments.scheduler import SweepStatus, run_sweep
    from coreplay.experiments.sweep import Sweep
    from coreplay.report.api import write

    plan = Sweep.demo()
    say = partial(echo, err=True)
    say(f"{len(plan.runs)} runs: making the stream and the vocabulary, and starting the worker processes")
    with _showing(plan) as (changed, show), stoppable(output, f"coreplay demo -o {output}"):
        status = SweepStatus(plan.runs, changed)
        run_sweep(status, output, tick=lambda: show(status))
    for name, problem in status.failures().items():
        say(f"failed: {name}: {problem}")
    written = write([output / "runs"], output / "report", gradient_maps=3, say=say)
    if as_json:
        echo(json.dumps(written.to_json()))
    else:
        show_markdown(written.markdown())
        echo(f"written: {written.page} (open it in a browser), with every figure and table beside it")
    if status.failures():
        raise typer.Exit(1)


def _found(file: Path | None, output: Path | None, resume: bool) -> tuple[Path, Path]:
    """Return the sweep's folder and the file that says what is compared."""
    from coreplay.experiments.sweep import PLAN

    if resume:
        if file is not None and output is not None:
            raise InputError(
                f"--resume goes on with the plan in a folder: leave out {str(file)!r}, or, to change the plan to it, "
                "--resume"
            )
        folder = output or file
        if folder is None:
            raise InputError("--resume needs the folder of a sweep: coreplay sweep --resume sweeps/first")
        if not (folder / PLAN).exists():
            raise InputError(f"--resume needs the folder of a sweep: there is no {PLAN} in {str(folder)!r}")
        return folder, folder / PLAN
    if file is None:
        raise InputError("name a file that says what to compare: coreplay sweep sweep.toml -o sweeps/first")
    return output or Path("sweeps") / file.stem, file


def _keep(plan: "Sweep", source: Path, folder: Path) -> None:
    """Keep the plan and its plugins in the folder, so that --resume finds them."""
    from coreplay.experiments.sweep import PLAN
    from coreplay.files import copy, write_text
    from coreplay.plugins import keep_plugins

    if plan.plugins:
        write_text(folder / PLAN, plan.toml(keep_plugins(plan.plugins, folder)))
    elif source.absolute() != (folder / PLAN).absolute():
        copy(source, folder / PLAN)


def table(status: "SweepStatus") -> str:
    """Return the state of all runs as a Markdown table: a row a strategy, a column a budget, a figure a seed."""
    from coreplay.report.html import column

    budgets = list(dict.fromkeys(planned.budget for planned in status.runs))
    cells: dict[tuple[str, str], list[str]] = {}
    scores = column(status.by_name[planned.name].score for planned in status.runs)
    for planned, score in zip(status.runs, scores, strict=True):
        cells.setdefault((planned.strategy, planned.budget), []).append(_mark(status.by_name[planned.name], score))
    lines = [
        "| strategy | " + " | ".join(f"budget {budget}" if budget else "no budget" for budget in budgets) + " |",
        "|---" * (len(budgets) + 1) + "|",
    ]
    for strategy in dict.fromkeys(planned.strategy for planned in status.runs):
        row = [", ".join(cells.get((strategy, budget), [])) for budget in budgets]
        lines.append(f"| {strategy} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _mark(run: "RunStatus", score: str) -> str:
    """Show a run in a cell: its score, its progress, or that it failed."""
    if run.state == "finished":
        return score if run.score is not None else "done"
    return {"running": f"{run.done:.0%}", "failed": "failed", "waiting": "·"}[run.state]


@contextmanager
def _showing(
    plan: "Sweep",
) -> Iterator[tuple[Callable[["Planned", "RunStatus"], None], Callable[["SweepStatus"], None]]]:
    """Give two functions: for a run in a new state, and to show all; a live table on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield _lines(len(plan.runs))
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.markdown import Markdown
    from rich.text import Text

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield (
            lambda planned, entry: None,
            lambda status: live.update(Group(Markdown(printable(table(status))), Text(_line(status)))),
        )


def _lines(total: int) -> tuple[Callable[["Planned", "RunStatus"], None], Callable[["SweepStatus"], None]]:
    state: dict[str, Any] = {"said": time.monotonic()}

    def changed(planned: "Planned", entry: "RunStatus") -> None:
        if entry.state in ("finished", "failed"):
            what = f"{entry.score:.4g}" if entry.score is not None else entry.state
            echo(f"{planned.name}: {entry.problem or what}", err=True)

    def show(status: "SweepStatus") -> None:
        if time.monotonic() - state["said"] > 30:
            state["said"] = time.monotonic()
            echo(_line(status), err=True)

    return changed, show


def _line(status: "SweepStatus") -> str:
    counts = ", ".join(f"{count} {state}" for state, count in status.counts().items() if count)
    left = status.seconds_left()
    return counts + (f"; about {duration(left)} left" if left is not None else "")
