"""`coreplay data ...`: list sources, make streams, describe them. Thin; heavy imports are inside the commands."""

import json
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from coreplay.display import echo, printable
from coreplay.errors import InputError, unknown

app = typer.Typer(
    help="Streams: make them from files, git histories or the embedded grammar, and see what they are like.",
    no_args_is_help=True,
    suggest_commands=False,
    rich_markup_mode="markdown",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="The .parquet file to write.")]
Seed = Annotated[int, typer.Option(help="Makes every random choice repeatable.")]
Days = Annotated[float | None, typer.Option(help="Length of a period in days.")]
Number = Annotated[int | None, typer.Option("--periods", help="How many periods.")]
Start = Annotated[str | None, typer.Option(help="When the first period begins, such as 2021-09-17.")]
Test = Annotated[float, typer.Option(help="Share of a period, its last part, that tests.")]
MinSamples = Annotated[int, typer.Option(help="Clients with fewer training samples are left out and reported.")]
MaxSamples = Annotated[int | None, typer.Option(help="Maximum number of samples per client, period and split.")]


@app.command("sources")
def sources_command(as_json: Json = False) -> None:
    """List where streams come from.

    Example: `coreplay data sources`
    """
    from coreplay.data import sources

    known = sources()
    if as_json:
        echo(json.dumps(known))
    else:
        width = max(map(len, known))
        echo("\n".join(f"{name:<{width}}  {text}" for name, text in sorted(known.items())))


@app.command()
def make(
    source: Annotated[str, typer.Argument(help="A source; `coreplay data sources` lists them.")],
    output: Output,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Option of the source, as name=value; values may be JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a stream from any source and write it to one Parquet file.

    Example: `coreplay data make synthetic -o stream.parquet --option num_clients=200 --option drift=0.5`

    Example: `coreplay data make huggingface -o out.parquet --option path=folder --option 'columns={"client": "user"}'`
    """
    from coreplay.data import load, save
    from coreplay.data.store import check_output

    check_output(output)
    with _warnings(), _busy(f"making {output}"):
        stream = load(source, **parse_options(option or []))
        save(stream, output)
    _told(stream, output, as_json)


@app.command("from-git")
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
    with _warnings(), _busy(f"making {output}"):
        limits = Clients(min_samples=min_samples, max_samples=max_samples)
        stream = load("git", repositories=repositories, salt=salt, periods=rule, clients=limits)
        save(stream, output)
    _told(stream, output, as_json)


@app.command()
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
        float | None, typer.Option(help="Share of a period that tests.  [default: 0.2, or a split column]")
    ] = None,
    min_samples: Annotated[
        int | None, typer.Option(help="Clients with fewer training samples are left out.  [default: 1]")
    ] = None,
    max_samples: MaxSamples = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Option of the source, as name=value; values may be JSON.")
    ] = None,
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
    options = parse_options(option or [])
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
    with _warnings(), _busy(f"reading {file}"):
        stream = load(source, **options)
    with _busy("measuring"):
        found, details = measure(stream, seed)
    if figure is not None:
        from coreplay.report.renderer import save_figure
        from coreplay.report.studies import stream_figure

        save_figure(stream_figure(Path(file).name, found, details), figure)
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


def parse_options(pairs: list[str], flag: str = "--option") -> dict[str, Any]:
    """Parse name=value pairs; values are JSON where they can be, or inf, else text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{flag} must be name=value: got {pair!r}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = math.inf if value == "inf" else value
    return options


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


@contextmanager
def _busy(what: str) -> Iterator[None]:
    """Show on a terminal that work is going on, and for how long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(printable(what), total=None)
        yield


def _told(stream: Any, output: Path, as_json: bool) -> None:
    tests = int(stream.test.sum())
    facts = {"clients": len(stream.clients), "periods": stream.periods, "samples": len(stream), "test_samples": tests}
    if as_json:
        echo(json.dumps(facts | {"file": str(output), "notes": list(stream.notes)}))
    else:
        echo(f"{', '.join(f'{value} {name}' for name, value in facts.items())}: {output}".replace("_", " "))
