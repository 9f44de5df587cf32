"""`coreplay data`: list sources, make streams, describe them."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from coreplay.cli import Command, Json, Options, Plugins, Seed, load_plugins, parse_options
from coreplay.cli.progress import echo, progress_bar
from coreplay.errors import InputError, unknown

app = typer.Typer(
    help="Streams: make them from files, git histories or the embedded grammar, and see what they are like.",
    no_args_is_help=True,
    suggest_commands=False,
    rich_markup_mode="markdown",
)

Output = Annotated[Path, typer.Option("--output", "-o", help="The .parquet file to write.")]
Days = Annotated[float | None, typer.Option(help="Length of a period in days.")]
Number = Annotated[int | None, typer.Option("--periods", help="Number of periods.")]
Start = Annotated[str | None, typer.Option(help="When the first period begins, such as 2021-09-17.")]
Test = Annotated[
    float, typer.Option("--test-fraction", help="Fraction at the end of each period that is held out for testing.")
]
MinSamples = Annotated[
    int,
    typer.Option(help="Clients with fewer training samples are left out and reported."),
]
MaxSamples = Annotated[int | None, typer.Option(help="Maximum number of samples per client, period and split.")]


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

    Example: `coreplay data make huggingface -o out.parquet --option path=folder --option 'columns={"client": "user"}'`
    """
    from coreplay.data import load, save
    from coreplay.data.store import check_output

    load_plugins(plugin)
    check_output(output)
    with _warnings(), progress_bar(f"making {output}"):
        stream = load(source, **parse_options(option))
        save(stream, output)
    _report(stream, output, as_json)


@app.command("from-git", cls=Command)
def from_git(
    repositories: Annotated[list[Path], typer.Argument(help="Git repositories on this machine.")],
    output: Output,
    days: Days = None,
    periods: Number = None,
    start: Start = None,
    test: Test = 0.2,
    min_samples: MinSamples = 1,
    max_samples: MaxSamples = None,
    salt: Annotated[
        str | None, typer.Option(help="Key of the pseudonyms, to make them again.  [default: random, not kept]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a stream of git histories: authors are the clients, commit subjects the texts.

    Links, addresses and names are scrubbed from the texts, and authors get pseudonyms. Periods are tenths of the whole
    time unless you say otherwise.

    Example: `coreplay data from-git ~/src/linux ~/src/git --days 180 --periods 10 -o stream.parquet`
    """
    from coreplay.data import Clients, Periods, load, save
    from coreplay.data.store import check_output

    check_output(output)
    rule = Periods(by="time", days=days, number=periods, start=start, test=test)
    with _warnings(), progress_bar(f"making {output}"):
        limits = Clients(min_samples=min_samples, max_samples=max_samples)
        stream = load("git", repositories=repositories, salt=salt, periods=rule, clients=limits)
        save(stream, output)
    _report(stream, output, as_json)


@app.command(cls=Command)
def describe(
    file: Annotated[
        str, typer.Argument(help="A .jsonl, .jsonl.gz, .csv, .csv.gz or .parquet file, or the name of a source.")
    ],
    client: Annotated[str | None, typer.Option(help="Column of the client.  [default: client_id]")] = None,
    text: Annotated[str | None, typer.Option(help="Column of the text.  [default: text]")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label.")] = None,
    timestamp: Annotated[str | None, typer.Option(help="Column of the time.")] = None,
    period: Annotated[str | None, typer.Option(help="Column of the period.")] = None,
    split: Annotated[str | None, typer.Option(help="Column of the split.")] = None,
    order: Annotated[str | None, typer.Option(help="Column whose order makes the periods.")] = None,
    days: Days = None,
    periods: Number = None,
    start: Start = None,
    test: Annotated[
        float | None,
        typer.Option("--test-fraction", help="Fraction held out for testing.  [default: 0.2, or a split column]"),
    ] = None,
    min_samples: Annotated[
        int | None, typer.Option(help="Clients with fewer training samples are left out.  [default: 1]")
    ] = None,
    max_samples: MaxSamples = None,
    option: Options = None,
    plugin: Plugins = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", "-f", help="Write the figure to this .png or .svg.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Show what a stream is like: sizes, heterogeneity of the clients, drift over the periods.

    Divergences are shown beside those of a random split of the same sizes. Times are cut into ten periods of equal
    length unless you say otherwise.

    Example: `coreplay data describe stream.jsonl.gz --figure stream.png`

    Example: `coreplay data describe log.csv --client user --text query --timestamp when --days 35 --periods 10`

    Example: `coreplay data describe synthetic --option num_clients=200`
    """
    from coreplay.data import load, sources
    from coreplay.data.describe import describe as measure

    if figure is not None and figure.suffix not in (".png", ".svg"):
        raise InputError(f"--figure {str(figure)!r} has suffix {figure.suffix!r}: use .png or .svg")
    load_plugins(plugin)
    options = parse_options(option)
    source = file
    if file not in sources() and not Path(file).suffix and not Path(file).exists():
        raise unknown("file or source", file, sources())
    columns = {"client": client, "text": text, "label": label, "timestamp": timestamp, "period": period}
    columns |= {"split": split, "order": order}
    cut = {"days": days, "periods": periods, "start": start, "test": test}
    limits = {"min_samples": min_samples, "max_samples": max_samples}
    if file not in sources():
        source = "files"
        cut = {("number" if name == "periods" else name): value for name, value in cut.items()}
        options |= {"path": file}
        options |= _given(columns=_given(**columns), periods=_given(**cut), clients=_given(**limits))
    elif flags := _given(**columns, **cut, **limits):
        raise InputError(
            f"--{next(iter(flags)).replace('_', '-')} is for files: give a source its options with --option name=value"
        )
    with _warnings(), progress_bar(f"reading {file}"):
        stream = load(source, **options)
    with progress_bar("measuring"):
        found, details = measure(stream, seed)
    if figure is not None:
        from coreplay.report.studies import write_stream

        write_stream(Path(file).name, found, details, figure)
    if as_json:
        echo(json.dumps(found.to_json()))
        return
    from coreplay.report.studies import stream_table

    echo(stream_table(Path(file).name, found))
    if figure is not None:
        echo(f"written: {figure}")


def _given(**values: Any) -> dict[str, Any]:
    """Return what was given: nothing that is None or empty."""
    return {name: value for name, value in values.items() if value not in (None, {})}


@contextmanager
def _warnings() -> Iterator[None]:
    """Show what was skipped as one line each on standard error."""
    from coreplay.data import DataWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, DataWarning):
            echo(f"warning: {warning.message}", err=True)


def _report(stream: Any, output: Path, as_json: bool) -> None:
    tests = int(stream.test.sum())
    facts = {"clients": len(stream.clients), "periods": stream.periods, "samples": len(stream), "test_samples": tests}
    if as_json:
        echo(json.dumps(facts | {"file": str(output), "notes": list(stream.notes)}))
    else:
        echo(f"{', '.join(f'{value} {name}' for name, value in facts.items())}: {output}".replace("_", " "))
