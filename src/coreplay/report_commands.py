"""`coreplay report`. Thin; heavy imports are inside the command."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from coreplay.data_commands import Json
from coreplay.display import show_markdown


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders with runs, searched at any depth.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the report.")] = Path("report"),
    maps: Annotated[
        int, typer.Option(help="Clients whose gradient space is drawn, which needs the stream; 0 for none.")
    ] = 3,
    texts: Annotated[
        bool, typer.Option("--texts", help="Show samples' texts on hover in the maps. For public data only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare finished runs: a page with figures and tables, and each of them as files.

    Runs that differ in more than strategy, budget and seed are put in groups of their own.

    Example: `coreplay report runs -o report`

    Example: `coreplay report runs/first runs/second --maps 0 --json`
    """
    from coreplay.report.runs import write

    written = write(runs, output, maps=maps, texts=texts, say=lambda text: print(text, file=sys.stderr, flush=True))
    if as_json:
        typer.echo(json.dumps(written.to_json()))
        return
    show_markdown(written.markdown())
    typer.echo(f"written: {written.page} and {len(written.files) - 1} files of figures and tables")
