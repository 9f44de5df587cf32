"""`coreplay data`: list sources, make streams, describe them."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreplay.cli import Command, Json, Plugins, Seed, load_plugins, parse_options
from coreplay.cli.progress import echo, progress_bar
from coreplay.errors import InputError, unknown

if TYPE_CHECKING:
    from coreplay.data import FederatedStream

app = typer.Typer(
    help="Streams: make them from files, data sets or the embedded grammar, and see what they are like.",
    no_args_is_help=True,
    suggest_commands=False,
    rich_markup_mode="markdown",
)

Output = Annotated[Path, typer.Option("--output", "-o", help="The .parquet file to write.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="Option of the source, as name=value or table.name=value; values may be JSON."),
]


@app.command(cls=Command)
def make(
    source: Annotated[str, typer.Argument(help="A source; `coreplay data sources` lists them.")],
    output: Output,
    option: Options = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Make a stream from any source and write it to one Parquet file.

    Example: `coreplay data make synthetic -o stream.parquet --option num_clients=200 --option drift=0.5`

    Example: `coreplay data make huggingface -o out.parquet --option path=folder --option columns.client=user`
    """
    from coreplay.data import save
    from coreplay.data.sources.files import check_output

    check_output(output)
    load_plugins(plugin)
    stream = _load(source, _tables(option), f"making {output}")
    with progress_bar(f"writing {output}"):
        save(stream, output)
    tests = int(stream.test.sum())
    facts = {"clients": len(stream.clients), "periods": stream.periods, "samples": len(stream), "test_samples": tests}
    if as_json:
        echo(json.dumps(facts | {"file": str(output), "notes": list(stream.notes)}))
    else:
        echo(f"{', '.join(f'{value} {name}' for name, value in facts.items())}: {output}".replace("_", " "))


@app.command(cls=Command)
def describe(
    file: Annotated[
        str, typer.Argument(help="A .jsonl, .jsonl.gz, .csv, .csv.gz or .parquet file, or the name of a source.")
    ],
    option: Options = None,
    plugin: Plugins = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", "-f", help="Write the figure to this .png or .svg.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Show what a stream is like: sizes, heterogeneity of the clients, drift over the periods.

    Divergences are shown beside those of a random split of the same sizes. A file takes the options of the source
    `files`: columns, periods and clients. Times are cut into ten periods of equal length unless you say otherwise.

    Example: `coreplay data describe stream.jsonl.gz --figure stream.png`

    Example: `coreplay data describe log.csv --option columns.client=user --option periods.days=35`

    Example: `coreplay data describe synthetic --option num_clients=200`
    """
    from coreplay.data import sources
    from coreplay.data.describe import describe as measure
    from coreplay.report.renderer import save_figure
    from coreplay.report.studies import stream_figure, stream_table

    if figure is not None and figure.suffix not in (".png", ".svg"):
        raise InputError(f"--figure {str(figure)!r} has suffix {figure.suffix!r}: use .png or .svg")
    load_plugins(plugin)
    if file not in sources() and not Path(file).suffix and not Path(file).exists():
        raise unknown("file or source", file, sources())
    source, path = (file, {}) if file in sources() else ("files", {"path": file})
    stream = _load(source, path | _tables(option), f"reading {file}")
    with progress_bar("measuring"):
        found, details = measure(stream, seed)
    if figure is not None:
        save_figure(stream_figure(Path(file).name, found, details), figure)
    if as_json:
        echo(json.dumps(found.to_json()))
        return
    echo(stream_table(Path(file).name, found))
    if figure is not None:
        echo(f"written: {figure}")


def _tables(pairs: list[str] | None) -> dict[str, Any]:
    """Parse the options of a source: columns.text=query is the option `text` in the table `columns`."""
    options: dict[str, Any] = {}
    for name, value in parse_options(pairs).items():
        table, dot, key = name.partition(".")
        if not dot:
            options[name] = value
        elif isinstance(options.setdefault(table, {}), dict):
            options[table][key] = value
        else:
            raise InputError(f"--option {table} is given as a whole: leave out --option {name}")
    return options


def _load(source: str, options: dict[str, Any], title: str) -> "FederatedStream":
    """Load a stream, and show what was skipped as one line each on standard error."""
    from coreplay.data import DataWarning, load

    with progress_bar(title), warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        stream = load(source, **options)
    for note in stream.notes:
        echo(f"warning: {note}", err=True)
    return stream
