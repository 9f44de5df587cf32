"""Coordination on the gradients of real clients: the last choice of finished runs, made again by each method.

    python -m benchmarks.coordination_real sweeps/slurp_speakers/runs/*-5-seed0 [--folder coordination-real]

A run's last pools are its buffers of the period before and the last period's samples; the gradients are those of its
last model, sketched as in the run. From them all clients choose alone, and by every method in some rounds: printed is
‖Σ kept gradients‖² over that of choosing alone. Needs runs with models and buffers, which the records in the
repository do not have. The sketches are kept in --folder; a second call goes on from there.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from threadpoolctl import threadpool_limits

from coreplay import coordinate
from coreplay.coordination import coordination_methods
from coreplay.files import atomic_write
from coreplay.learning.parameter_vector import FlatModel
from coreplay.replay import Store
from coreplay.runtime.api import prepare
from coreplay.runtime.client import ClientRuntime
from coreplay.runtime.run_dir import RunFolder, versions

Floats = NDArray[np.float32]


def sketches(path: Path, kept: Path) -> tuple[list[Floats], int]:
    """Return the unit gradients of each client with more samples than it may keep, and the budget."""
    config = RunFolder.open(path).config()
    if not kept.exists():
        checkpoint = RunFolder.open(path).checkpoint()
        assert checkpoint is not None, f"{path} has no model"
        things = prepare(config)
        found = {}
        with tempfile.TemporaryDirectory() as scratch, Store.open(path / "buffers.sqlite") as store:
            runtime = ClientRuntime(
                config, things.stream, things.task, FlatModel(things.task.model(0)), store, Path(scratch)
            )
            period = things.stream.periods - 1
            for number, client in enumerate(things.stream.clients):
                pool = runtime.pool(client, period)
                if len(things.stream.samples(client, period)) and len(pool) > config.replay.budget:
                    matrix = runtime.gradients(client, pool, checkpoint.values)
                    found[str(number)] = np.array([matrix.combine(unit) for unit in np.eye(len(pool))], np.float32)
        with atomic_write(kept) as temporary:
            save_file(found, temporary)
    rows = load_file(kept)
    return [rows[name] for name in sorted(rows, key=int)], config.replay.budget


def main() -> None:
    """Print a table for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--folder", type=Path, default=Path("coordination-real"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(exist_ok=True, parents=True)
    methods = sorted(coordination_methods())
    ratios: dict[str, list[list[float]]] = {method: [] for method in methods}
    print("objective / that of choosing alone, after", ", ".join(map(str, options.rounds)), "rounds")
    with threadpool_limits(1):
        for run in options.runs:
            clients, budget = sketches(run, options.folder / f"{run.name}.safetensors")
            alone = coordinate(clients, budget, rounds=0).objective
            lengths = sum(coordinate([rows], budget, rounds=0).objective for rows in clients)
            samples = sum(map(len, clients)) / len(clients)
            print(f"\n{run.name}: {len(clients)} clients choose, {samples:.0f} samples each;")
            print(f"  alone {alone:.0f}, {alone / lengths:.1f} times the sum of the clients' own squares")
            for method in methods:
                found = [coordinate(clients, budget, method, rounds).objective / alone for rounds in options.rounds]
                ratios[method].append(found)
                print(f"  {method:12}", " ".join(f"{value:6.3f}" for value in found), flush=True)
    print("\nmean of all, and worst")
    for method, all_found in ratios.items():
        mean, worst = np.exp(np.log(all_found).mean(axis=0)), np.max(all_found, axis=0)
        print(f"  {method:12}", " ".join(f"{m:6.3f}" for m in mean), "  ", " ".join(f"{w:6.3f}" for w in worst))
    print("\nversions:", versions())


if __name__ == "__main__":
    main()
