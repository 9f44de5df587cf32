"""`coreplay sweep`, `report` and `demo`: many runs, and their comparison."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coreplay.cli import Json, Plugins, load_plugins
from coreplay.cli.progress import echo, following_sweep, show_markdown
from coreplay.cli.run import folder_to_resume, stoppable
from coreplay.errors import InputError
from coreplay.report.text import sweep_table

if TYPE_CHECKING:
    from coreplay.experiments.sweep import Sweep


def sweep(
    file: Annotated[
        Path | None, typer.Argument(help="The file that says what to compare; with --resume, the sweep's folder.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the sweep.  [default: sweeps/NAME]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the sweep in the folder.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of runs at a time.  [default: one per core]", min=1)
    ] = None,
    plugin: Plugins = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Compare strategies, budgets, seeds and anything else of the configuration, in many runs.

    The same command continues a sweep that was stopped; with more strategies, budgets or seeds in the file it adds
    their runs. A run that fails is shown with its reason and does not stop the others.

    Example: `coreplay sweep sweep.toml -o sweeps/first`

    Example: `coreplay sweep --resume sweeps/first`
    """
    from coreplay.experiments.scheduler import SweepStatus, find_finished, run_sweep
    from coreplay.experiments.sweep import PLAN, Sweep
    from coreplay.files import exclusive_lock

    if resume:
        folder = folder_to_resume(file, output, "coreplay sweep --resume sweeps/first")
        source = folder / PLAN
        if not source.exists():
            raise InputError(f"--resume needs the folder of a sweep: there is no {PLAN} in {str(folder)!r}")
    elif file is None:
        raise InputError("name a file that says what to compare: coreplay sweep sweep.toml -o sweeps/first")
    else:
        folder, source = output or Path("sweeps") / file.stem, file
    plan = Sweep.load(source, plugins=plugin or [])
    if dry_run:
        names = [planned.name for planned in plan.runs]
        echo(json.dumps(names) if as_json else "\n".join(names))
        return
    status = SweepStatus(plan.runs)
    with stoppable(folder, f"coreplay sweep --resume {folder}"), following_sweep(status) as show:
        with exclusive_lock(folder):  # a folder with other runs, or at work, is refused before its plan is replaced
            find_finished(status, folder)
            _keep(plan, source, folder)
        run_sweep(status, folder, workers=workers, tick=show)
    failures = status.failures()
    if as_json:
        echo(json.dumps({"folder": str(folder), "runs": status.counts(), "failures": failures}))
    else:
        show_markdown(sweep_table(status))
        echo(f"written: {folder}; look at it with: coreplay report {folder} -o {folder / 'report'}")
    for name, problem in failures.items():
        echo(f"failed: {name}: {problem}", err=True)
    if failures:
        raise typer.Exit(1)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders with runs, searched at any depth.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the report.")] = Path("report"),
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs: a page with figures and tables, and each of them as files.

    Runs that differ in more than strategy, budget and seed are put in groups of their own.

    Example: `coreplay report runs -o report`

    Example: `coreplay report runs/first runs/second --json`
    """
    from coreplay.report.api import write

    load_plugins(plugin)
    written = write(runs, output, say=partial(echo, err=True))
    if as_json:
        echo(json.dumps(written.to_json()))
        return
    show_markdown(written.markdown())
    echo(f"written: {written.page} and {len(written.files) - 1} files of figures and tables")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for runs and results.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """Compare strategies of replay on a small synthetic stream, in under three minutes, with a table and a page.

    Runs that are in the folder already are not repeated.

    Example: `coreplay demo`
    """
    from coreplay.experiments.scheduler import SweepStatus, run_sweep
    from coreplay.experiments.sweep import Sweep
    from coreplay.report.api import write

    plan = Sweep.demo()
    say = partial(echo, err=True)
    say(f"{len(plan.runs)} runs: making the stream and the vocabulary, and starting the worker processes")
    status = SweepStatus(plan.runs)
    with stoppable(output, f"coreplay demo -o {output}"), following_sweep(status) as show:
        run_sweep(status, output, tick=show)
    for name, problem in status.failures().items():
        say(f"failed: {name}: {problem}")
    written = write([output / "runs"], output / "report", say=say)
    if as_json:
        echo(json.dumps(written.to_json()))
    else:
        show_markdown(written.markdown())
        echo(f"written: {written.page} (open it in a browser), with every figure and table beside it")
    if status.failures():
        raise typer.Exit(1)


def _keep(plan: "Sweep", source: Path, folder: Path) -> None:
    """Keep the plan and its plugins in the folder, so that --resume finds them."""
    from coreplay.experiments.sweep import PLAN
    from coreplay.files import copy, write_text
    from coreplay.plugins import keep_plugins

    if plan.plugins:
        write_text(folder / PLAN, plan.toml(keep_plugins(plan.plugins, folder)))
    elif source.absolute() != (folder / PLAN).absolute():
        copy(source, folder / PLAN)
