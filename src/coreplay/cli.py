"""The command line: thin, with examples in every --help and errors without tracebacks.

Heavy libraries are imported inside the commands that use them, so that `coreplay --help` answers at once.
"""

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand

from coreplay import __version__, report_commands, run_commands, sweep_commands
from coreplay.data_commands import Json, Seed, parse_options
from coreplay.data_commands import app as data_app
from coreplay.display import echo, show_markdown
from coreplay.errors import InputError
from coreplay.flower_commands import app as flower_app


def _keep_help() -> None:
    """Let arguments keep their help: click 8.5 sets one of its own in its constructor, which typer calls last."""
    plain = TyperArgument.__init__

    def init(self: TyperArgument, *, help: str | None = None, **others: Any) -> None:
        plain(self, help=help, **others)
        self.help = help

    TyperArgument.__init__ = init  # type: ignore[method-assign]


_keep_help()
_python_shows = warnings.showwarning
app = typer.Typer(
    name="coreplay",
    help="Continual federated learning with coordinated replay: clients choose jointly what to remember.",
    epilog="Start with: coreplay demo",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
app.command()(sweep_commands.demo)
app.command()(run_commands.run)
app.command()(run_commands.runs)
app.command()(sweep_commands.sweep)
app.command()(report_commands.report)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")


class Spread(TyperCommand):
    """A command whose repeatable options take several values after one name: --n 10 30 50."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `--n 10 30` as `--n 10 --n 30`, which is what click understands."""
        many = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        spread: list[str] = []
        current = None
        for arg in args:
            if arg.startswith("-"):
                current = arg if arg in many else None
            elif current and spread[-1] != current:
                spread.append(current)
            spread.append(arg)
        return super().parse_args(ctx, spread)


def main() -> None:
    """Run the command line; wrong input ends with exit code 2 and one line on standard error."""
    warnings.showwarning = _show_warning
    run_commands.interrupt_once()
    try:
        app()
    except InputError as error:
        echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        echo("interrupted", err=True)
        sys.exit(130)
    except OSError as error:
        echo(f"error: {error}", err=True)
        sys.exit(1)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Show what was skipped in the data as one line, and other warnings as Python does."""
    from coreplay.data import DataWarning

    if issubclass(category, DataWarning):
        echo(f"warning: {message}", err=True)
    else:
        _python_shows(message, category, *place, **more)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"coreplay {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def select(
    file: Annotated[Path, typer.Argument(help="Gradients, one row a sample: .npy, .npz or .safetensors.")],
    budget: Annotated[int, typer.Option(help="How many samples to keep.")],
    method: Annotated[str, typer.Option(help="How to choose; `coreplay selectors` lists the methods.")] = "polished",
    seed: Seed = 0,
    gram: Annotated[bool, typer.Option("--gram", help="The array is a gram (n x n), not gradients.")] = False,
    seen: Annotated[
        int | None, typer.Option(help="Samples seen in earlier periods (approximate_uniform, balanced).")
    ] = None,
    option: Annotated[list[str] | None, typer.Option("--option", help="Option of the method, as name=value.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the indices to this .npy or .json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose which samples of a pool to keep.

    A .npz or .safetensors file may name its arrays: `gradients` or `gram`, and besides `features` (for herding) and
    `new` (True for each sample that is new; for approximate_uniform, fixed_proportion and balanced).

    Example: `coreplay select gradients.npy --budget 20`

    Example: `coreplay select pool.npz --budget 5 --method exact --option time_limit=10 --json`
    """
    from coreplay.files import atomic_write, read_arrays, write_json
    from coreplay.selection import choose, objective

    if output is not None and output.suffix not in (".npy", ".json"):
        raise InputError(f"--output {str(output)!r} has suffix {output.suffix!r}: use .npy or .json")
    arrays = _named(read_arrays(file), str(file), gram)
    selection = choose(**arrays, budget=budget, method=method, seed=seed, seen=seen, **parse_options(option or []))
    indices = selection.indices.tolist()
    result = {
        "method": method,
        "budget": budget,
        "pool": len(arrays.get("gradients", arrays.get("gram", []))),
        "indices": indices,
    }
    result["objective"] = objective(arrays.get("gradients"), selection.indices, gram=arrays.get("gram"))
    result |= selection.details
    if output is not None and output.suffix == ".npy":
        import numpy as np

        with atomic_write(output) as temporary:
            np.save(temporary, selection.indices)
    elif output is not None:
        write_json(output, indices)
    if len(indices) == result["pool"]:
        echo(f"the pool of {result['pool']} is not larger than the budget of {budget}: all is kept", err=True)
    if as_json:
        echo(json.dumps(result))
    elif output is None:
        echo("\n".join(map(str, indices)))
    else:
        echo(f"kept {len(indices)} of {result['pool']}, objective {result['objective']:.4f}: {output}")


def _named(arrays: dict[str, Any], file: str, gram: bool) -> dict[str, Any]:
    """Give the arrays of a file their roles."""
    roles = {"gradients", "gram", "features", "new"}
    named = {name: array for name, array in arrays.items() if name in roles}
    if not {"gradients", "gram"} & set(named):
        others = [name for name in arrays if name not in roles]
        if len(others) != 1:
            raise InputError(f"file {file!r} has arrays {sorted(arrays)}: name one of them 'gradients' or 'gram'")
        named["gram" if gram else "gradients"] = arrays[others[0]]
    return named


@app.command("selectors")
def selectors_command(as_json: Json = False) -> None:
    """List the methods of `coreplay select`.

    Example: `coreplay selectors`
    """
    from coreplay.selection import selectors

    known = selectors()
    if as_json:
        echo(json.dumps(known))
    else:
        width = max(map(len, known))
        echo("\n".join(f"{name:<{width}}  {text}" for name, text in sorted(known.items())))


@app.command("near-optimality", cls=Spread)
def near_optimality(
    n: Annotated[list[int] | None, typer.Option(help="Pool sizes, one or several.  [default: 10 30 50]")] = None,
    budget: Annotated[int, typer.Option(help="How many samples to select.")] = 5,
    repeats: Annotated[int, typer.Option(help="Random problems per pool size.")] = 5000,
    mixture: Annotated[str, typer.Option(help="literal (as the paper's appendix says) or uncentred.")] = "literal",
    method: Annotated[list[str] | None, typer.Option(help="Methods to compare.  [default: all that apply]")] = None,
    seed: Seed = 0,
    workers: Annotated[int | None, typer.Option(help="Processes.  [default: one a core]")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results.")] = Path("near-optimality"),
    as_json: Json = False,
) -> None:
    """Compare all selectors with the exact optimum (the paper's section 5.1).

    Example: `coreplay near-optimality --n 10 30 50 --budget 5 --repeats 5000 --mixture uncentred -o results`
    """
    from coreplay.experiments.near_optimality import NearOptimality

    config = NearOptimality(
        sizes=tuple(n or (10, 30, 50)),
        budget=budget,
        repeats=repeats,
        mixture=mixture,
        seed=seed,
        methods=tuple(method or ()),
    )
    _near_optimality(config, output, workers=workers, as_json=as_json)


@app.command("coordinate", cls=Spread)
def coordinate_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Gradients of your own clients, a file each, one row a sample: .npy, .npz, .safetensors."),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients to generate.  [default: 200]")] = None,
    pool: Annotated[int | None, typer.Option(help="Samples of each generated client.  [default: 50]")] = None,
    budget: Annotated[int, typer.Option(help="How many each may keep.")] = 5,
    dimension: Annotated[int | None, typer.Option(help="Length of a generated gradient.  [default: 300]")] = None,
    rounds: Annotated[
        list[int] | None,
        typer.Option(help="Numbers of rounds, one or several; one for files.  [default: 0 1 2 4 8 16; 4 for files]"),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Methods to compare; one for files.  [default: all; corrective for files]")
    ] = None,
    concentration: Annotated[
        float | None, typer.Option(help="How alike generated clients are: small for different ones.  [default: 0.2]")
    ] = None,
    seed: Seed = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results.")] = Path("coordination"),
    as_json: Json = False,
) -> None:
    """Let clients choose jointly: your own, or generated ones, to see how the objective falls with the rounds.

    Files come before the options. The selection of each is written to selections.json in the output folder.

    Example: `coreplay coordinate alice.npy bob.npz carol.safetensors --budget 20 --rounds 4 -o kept`

    Example: `coreplay coordinate --clients 200 --rounds 0 1 2 4 8 16 -o coordination`
    """
    generated = {"clients": clients, "pool": pool, "dimension": dimension, "concentration": concentration}
    given = {name: value for name, value in generated.items() if value is not None}
    if not files:
        _coordinate_generated(given, budget, rounds, method, seed, output, as_json)
        return
    if given:
        raise InputError(f"--{next(iter(given))} is for generated clients: leave it out, or the files")
    for name, values in (("rounds", rounds), ("method", method)):
        if values and len(values) > 1:
            raise InputError(f"--{name} must have one value for clients from files: got {len(values)}")
    _coordinate_files(files, budget, (method or ["corrective"])[0], (rounds or [4])[0], seed, output, as_json)


def _coordinate_generated(
    given: dict[str, Any],
    budget: int,
    rounds: list[int] | None,
    method: list[str] | None,
    seed: int,
    output: Path,
    as_json: bool,
) -> None:
    from coreplay.coordination import coordination_methods
    from coreplay.experiments.coordination_study import CoordinationStudy, run
    from coreplay.files import check_output_dir
    from coreplay.report.studies import study_files, write_study

    config = CoordinationStudy(
        **{"clients": 200} | given,
        budget=budget,
        rounds=tuple(sorted(set(rounds or (0, 1, 2, 4, 8, 16)))),
        methods=tuple(dict.fromkeys(method or sorted(coordination_methods()))),
        seed=seed,
    )
    earlier = check_output_dir(output, study_files("convergence"))
    with _progress(f"{config.clients} clients", quiet=as_json) as progress:
        result = run(config, progress=progress)
    table, paths = write_study(result, output)
    if as_json:
        echo(json.dumps(result.to_json()))
        return
    show_markdown(table)
    echo(f"{'replaced' if earlier else 'written'}: " + ", ".join(str(path) for path in paths))


def _coordinate_files(
    files: list[Path], budget: int, method: str, rounds: int, seed: int, output: Path, as_json: bool
) -> None:
    from dataclasses import asdict

    from coreplay.coordination import coordinate
    from coreplay.files import check_output_dir, read_arrays, write_json

    if len({str(file) for file in files}) < len(files):
        raise InputError("a file is named twice: pass one file a client")
    paths = [output / "results.json", output / "selections.json"]
    earlier = check_output_dir(output, [path.name for path in paths])
    clients = []
    for file in files:
        arrays = _named(read_arrays(file), str(file), gram=False)
        if "gradients" not in arrays:
            raise InputError(f"file {str(file)!r} has a gram only: clients choose jointly by their gradients")
        clients.append(arrays["gradients"])
    try:
        alone = coordinate(clients, budget, method, 0, seed)
        found = coordinate(clients, budget, method, rounds, seed)
    except InputError as error:  # it numbers the clients; say which file that is
        raise InputError(re.sub(r"clients\[(\d+)\]", lambda k: repr(str(files[int(k[1])])), str(error))) from None
    result = {
        "method": method,
        "rounds": rounds,
        "budget": budget,
        "seed": seed,
        "objective": found.objective,
        "alone": alone.objective,
        "bytes_up": found.bytes_up,
        "bytes_down": found.bytes_down,
        "history": [asdict(report) for report in found.history],
    }
    selections = {str(file): kept.tolist() for file, kept in zip(files, found.selections, strict=True)}
    write_json(paths[0], result)
    write_json(paths[1], selections)
    if as_json:
        echo(json.dumps(result | {"selections": selections}))
        return
    kept, pools = sum(map(len, selections.values())), sum(map(len, clients))
    if kept == pools:
        echo(f"no pool is larger than the budget of {budget}: everything is kept, nothing to coordinate")
    else:
        echo(
            f"{len(files)} clients keep {kept} of {pools} samples: objective {found.objective:.6g} "
            f"after {rounds} rounds, {alone.objective:.6g} if each chooses alone"
        )
    echo(f"{'replaced' if earlier else 'written'}: " + ", ".join(str(path) for path in paths))


def _near_optimality(config: Any, output: Path, *, workers: int | None = None, as_json: bool = False) -> None:
    from coreplay.experiments.near_optimality import run
    from coreplay.files import check_output_dir
    from coreplay.report.studies import study_files, write_study

    check_output_dir(output, study_files(*(f"ratios-n{n}" for n in config.sizes)))
    with _progress(f"{config.mixture} mixture", quiet=as_json) as progress:
        result = run(config, workers=workers, progress=progress)
    table, paths = write_study(result, output)
    if as_json:
        echo(json.dumps(result.to_json()))
        return
    show_markdown(table)
    echo(f"{result.seconds:.0f} s; written: " + ", ".join(str(path) for path in paths))


@contextmanager
def _progress(title: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Give a function (done, total) that moves a bar on the terminal; silent when a program reads the output."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
