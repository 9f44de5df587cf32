"""`coreplay sweep` and `demo`: many runs, with a live table of their progress, and for the demo a report."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coreplay.cli import Json, Plugins
from coreplay.cli.progress import echo, following_sweep, show_markdown
from coreplay.cli.run import stoppable
from coreplay.errors import InputError

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
    from coreplay.experiments.sweep import Sweep
    from coreplay.files import exclusive_lock
    from coreplay.report.text import sweep_table

    folder, source = _found(file, output, resume)
    plan = Sweep.load(source, plugins=plugin or [])
    if dry_run:
        names = [planned.name for planned in plan.runs]
        echo(json.dumps(names) if as_json else "\n".join(names))
        return
    with following_sweep(sweep_table) as (changed, show), stoppable(folder, f"coreplay sweep --resume {folder}"):
        status = SweepStatus(plan.runs, changed)
        with exclusive_lock(folder):  # a folder with other runs, or at work, is refused before its plan is replaced
            find_finished(status, folder)
            _keep(plan, source, folder)
        run_sweep(status, folder, workers=workers, tick=lambda: show(status))
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
    from coreplay.report.text import sweep_table

    plan = Sweep.demo()
    say = partial(echo, err=True)
    say(f"{len(plan.runs)} runs: making the stream and the vocabulary, and starting the worker processes")
    with following_sweep(sweep_table) as (changed, show), stoppable(output, f"coreplay demo -o {output}"):
        status = SweepStatus(plan.runs, changed)
        run_sweep(status, output, tick=lambda: show(status))
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
