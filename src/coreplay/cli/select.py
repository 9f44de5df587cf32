"""`coreplay select`, `coordinate` and `near-optimality`: choosing from files of gradients, and studies of it."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreplay.cli import Json, Options, Plugins, Seed, load_plugins, parse_options
from coreplay.cli.progress import echo, progress_bar, show_markdown
from coreplay.errors import InputError

if TYPE_CHECKING:
    from coreplay.experiments.coordination_study import StudyResult
    from coreplay.experiments.near_optimality import Result

_GENERATED = "Generated clients (if no files are given)"


def select(
    file: Annotated[Path, typer.Argument(help="Gradients, one row per sample: .npy, .npz or .safetensors.")],
    budget: Annotated[int, typer.Option(help="Number of samples to keep.")],
    method: Annotated[str, typer.Option(help="The selector; `coreplay selectors` lists them.")] = "polished",
    seed: Seed = 0,
    gram: Annotated[bool, typer.Option("--gram", help="The array is a gram (n x n), not gradients.")] = False,
    seen: Annotated[
        int | None, typer.Option(help="Number of samples in earlier periods (approximate_uniform, balanced).")
    ] = None,
    option: Options = None,
    plugin: Plugins = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the indices to this .npy or .json file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose which samples of a pool to keep.

    A .npz or .safetensors file may name its arrays: `gradients` or `gram`, `new` (True for each sample that is new; for
    approximate_uniform, fixed_proportion and balanced) and columns of the pool, such as `features` (for herding).

    Example: `coreplay select gradients.npy --budget 20`

    Example: `coreplay select pool.npz --budget 5 --method exact --option time_limit=10 --json`
    """
    from coreplay.files import atomic_write, read_arrays, write_json
    from coreplay.selection import make_pool, objective, select_from

    if output is not None and output.suffix not in (".npy", ".json"):
        raise InputError(f"--output {str(output)!r} has suffix {output.suffix!r}: use .npy or .json")
    load_plugins(plugin)
    arrays = _named(read_arrays(file), str(file), gram)
    candidates = make_pool(**arrays, seen=seen)
    selection = select_from(candidates, budget=budget, method=method, seed=seed, **parse_options(option))
    indices, pool = selection.indices.tolist(), candidates.size
    value = objective(arrays.get("gradients"), selection.indices, gram=arrays.get("gram"))
    if output is not None and output.suffix == ".npy":
        import numpy as np

        with atomic_write(output) as temporary:
            np.save(temporary, selection.indices)
    elif output is not None:
        write_json(output, indices)
    if len(indices) == pool:
        echo(f"the pool of {pool} is not larger than the budget of {budget}: all samples are kept", err=True)
    if as_json:
        about = {"method": method, "budget": budget, "pool": pool, "indices": indices, "objective": value}
        weights = {} if selection.weights is None else {"weights": selection.weights.tolist()}
        echo(json.dumps({**about, **weights, **selection.details}))
    elif output is None:
        echo("\n".join(map(str, indices)))
    else:
        echo(f"kept {len(indices)} of {pool}, objective {value:.4f}: {output}")


def _named(arrays: dict[str, Any], file: str, gram: bool = False) -> dict[str, Any]:
    """Give the arrays of a file their roles."""
    roles = {"gradients", "gram", "new"}
    named: dict[str, Any] = {name: array for name, array in arrays.items() if name in roles}
    columns = {name: array for name, array in arrays.items() if name not in roles}
    if not {"gradients", "gram"} & set(named):
        others = [name for name in columns if name != "features"]
        if len(others) != 1:
            raise InputError(f"file {file!r} has arrays {sorted(arrays)}: name one of them 'gradients' or 'gram'")
        named["gram" if gram else "gradients"] = columns.pop(others[0])
    return {**named, "columns": {name: lambda array=array: array for name, array in columns.items()}}


def near_optimality(
    n: Annotated[list[int] | None, typer.Option(help="Pool sizes, one or several.  [default: 10 30 50]")] = None,
    budget: Annotated[int, typer.Option(help="Number of samples to select.")] = 5,
    repeats: Annotated[int, typer.Option(help="Random problems per pool size.")] = 5000,
    mixture: Annotated[str, typer.Option(help="literal (as in the paper's appendix) or uncentred.")] = "literal",
    method: Annotated[list[str] | None, typer.Option(help="Selectors to compare.  [default: all that apply]")] = None,
    seed: Seed = 0,
    workers: Annotated[int | None, typer.Option(help="Worker processes.  [default: one per core]")] = None,
    plugin: Plugins = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results.")] = Path("near-optimality"),
    as_json: Json = False,
) -> None:
    """Compare all selectors with the exact optimum (the paper's section 5.1).

    Example: `coreplay near-optimality --n 10 30 50 --budget 5 --repeats 5000 --mixture uncentred -o results`
    """
    from coreplay.experiments.near_optimality import NearOptimality, run
    from coreplay.files import check_output_dir
    from coreplay.report.studies import study_files

    load_plugins(plugin)
    sizes, methods = tuple(n or (10, 30, 50)), tuple(method or ())
    config = NearOptimality(sizes=sizes, budget=budget, repeats=repeats, mixture=mixture, seed=seed, methods=methods)
    check_output_dir(output, study_files(*(f"ratios-n{n}" for n in sizes)))
    with progress_bar(f"{mixture} mixture", quiet=as_json) as progress:
        result = run(config, workers=workers, progress=progress)
    _write(result, output, as_json)


def _write(result: "Result | StudyResult", output: Path, as_json: bool) -> None:
    """Write the files of a study, and show its result."""
    from coreplay.report.studies import write_study

    table, paths = write_study(result, output)
    if as_json:
        echo(json.dumps(result.to_json()))
        return
    show_markdown(table)
    echo(f"written: {', '.join(map(str, paths))}")


def coordinate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Gradients, one file per client and one row per sample: .npy, .npz or .safetensors."),
    ] = None,
    budget: Annotated[int, typer.Option(help="Number of samples that each client keeps.")] = 5,
    rounds: Annotated[
        list[int] | None, typer.Option(help="Numbers of rounds, one or several.  [default: 0 1 2 4 8 16]")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Coordination methods.  [default: all]")] = None,
    seed: Seed = 0,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients.  [default: 200]", rich_help_panel=_GENERATED)
    ] = None,
    pool: Annotated[
        int | None, typer.Option(help="Samples per client.  [default: 50]", rich_help_panel=_GENERATED)
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Length of a gradient.  [default: 300]", rich_help_panel=_GENERATED)
    ] = None,
    concentration: Annotated[
        float | None,
        typer.Option(
            help="Similarity of the clients; small values make them differ.  [default: 0.2]", rich_help_panel=_GENERATED
        ),
    ] = None,
    plugin: Plugins = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results.")] = Path("coordination"),
    as_json: Json = False,
) -> None:
    """Let clients choose jointly, and show how the objective falls with the number of rounds.

    The clients come from files, one per client, or are generated. Files come before the options; what each client
    keeps, by the method and number of rounds with the smallest objective, is then written to selections.json.

    Example: `coreplay coordinate alice.npy bob.npz carol.safetensors --budget 20 --rounds 0 4 -o kept`

    Example: `coreplay coordinate --clients 200 --rounds 0 1 2 4 8 16 -o coordination`
    """
    from coreplay.coordination import coordination_methods
    from coreplay.experiments.coordination_study import CoordinationStudy, run
    from coreplay.files import check_output_dir, read_arrays
    from coreplay.report.studies import SELECTIONS, study_files

    load_plugins(plugin)
    options = {"clients": clients, "pool": pool, "dimension": dimension, "concentration": concentration}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if files and given:
        raise InputError(f"--{next(iter(given))} is for generated clients: leave it out, or leave out the files")
    if len({str(file) for file in files or []}) < len(files or []):
        raise InputError("a file is named twice: name one file per client")
    own = {}
    for file in files or []:
        arrays = _named(read_arrays(file), str(file))
        if "gradients" not in arrays:
            raise InputError(f"file {str(file)!r} has a gram only: clients choose jointly by their gradients")
        own[str(file)] = arrays["gradients"]
    if own:
        given = {"pool": max(map(len, own.values())), "dimension": next(iter(own.values())).shape[-1]}
    config = CoordinationStudy(
        **{"clients": len(own) or 200} | given,
        budget=budget,
        rounds=tuple(sorted(set(rounds or (0, 1, 2, 4, 8, 16)))),
        methods=tuple(dict.fromkeys(method or sorted(coordination_methods()))),
        seed=seed,
    )
    check_output_dir(output, [*study_files("convergence"), SELECTIONS])
    with progress_bar(f"{config.clients} clients", quiet=as_json) as progress:
        try:
            result = run(config, own or None, progress=progress)
        except InputError as error:  # it numbers the clients; say which file that is
            names = list(own)
            raise InputError(re.sub(r"clients\[(\d+)\]", lambda k: repr(names[int(k[1])]), str(error))) from None
    _write(result, output, as_json)
