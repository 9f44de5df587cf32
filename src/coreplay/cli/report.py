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
    gradient_maps: Annotated[
        int,
        typer.Option(
            help="Clients whose gradient space is drawn. This loads the stream and the model that the runs' own "
            "configuration names: ask for it only if you trust the runs."
        ),
    ] = 0,
    texts: Annotated[
        bool, typer.Option("--texts", help="Add the samples' texts to map.csv. For public data only.")
    ] = False,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs: a page with figures and tables, and each of them as files.

    Runs that differ in more than strategy, budget and seed are put in groups of their own.

    Example: `coreplay report runs -o report`

    Example: `coreplay report runs/first runs/second --gradient-maps 3 --json`
    """
    from coreplay.report.api import write

    load_plugins(plugin)
    written = write(runs, output, gradient_maps=gradient_maps, texts=texts, say=partial(echo, err=True))
    if as_json:
        echo(json.dumps(written.to_json()))
        return
    show_markdown(written.markdown())
    echo(f"written: {written.page} and {len(written.files) - 1} files of figures and tables")
