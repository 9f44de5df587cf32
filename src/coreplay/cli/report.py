"""`coreplay report`."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coreplay.cli import Json, Plugins, load_plugins
from coreplay.cli.progress import echo, show_markdown


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
