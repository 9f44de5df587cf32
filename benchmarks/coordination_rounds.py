"""Rounds: corrective against alternating and against the joint relaxed optimum, on generated clients.

python -m benchmarks.coordination_rounds            # M = 1000, three seeds
python -m benchmarks.coordination_rounds --small    # M = 20 and 200, d = 300 and 2000, ten seeds
python -m benchmarks.coordination_rounds --parts    # corrective without one part or the other

The constants of corrective were tuned on seeds 0 to 4, for M = 20 on 30 to 44 besides, and on gradients of real
clients.
"""

import argparse
import math
from itertools import product
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from coreplay import coordinate
from coreplay.coordination import Client, Server
from coreplay.coordination.methods import corrective
from coreplay.experiments.coordination_study import CoordinationStudy, StudyResult, draw_clients, joint_bound, run
from coreplay.runtime.run_dir import versions
from coreplay.selection.solvers.in_groups import indicator

SEEDS, SMALL_SEEDS = (10, 11, 12), (10, 11, 12, 13, 14, 20, 21, 22, 23, 24)
ROUNDS, MOST = (0, 1, 2, 4, 8, 16), 16
Floats = NDArray[np.float64]


def table(result: StudyResult) -> dict[tuple[str, int], float]:
    return {(o.method, o.rounds): o.objective for o in result.outcomes}


def show(result: StudyResult) -> None:
    """Print the table of one problem."""
    config, found = result.config, table(result)
    print(
        f"\nM = {config.clients}, n = {config.pool}, N = {config.budget}, d = {config.dimension}, seed {config.seed}:",
        end=" ",
    )
    print(f"joint relaxed optimum between {result.lower:.0f} and {result.upper:.0f}")
    print("rounds  alternating  /bound   corrective  /bound   corrective/alternating")
    for rounds in config.rounds:
        a, c = found["alternating", rounds], found["corrective", rounds]
        print(f"{rounds:6d}  {a:11.0f}  {a / result.lower:6.3f}  {c:11.0f}  {c / result.lower:6.4f}   {c / a:6.3f}")
    print(f"corrective 1 / alternating 4:  {found['corrective', 1] / found['alternating', 4]:.3f}")
    print(f"corrective 4 / alternating 16: {found['corrective', 4] / found['alternating', 16]:.3f}", flush=True)


def every_number_of_rounds(config: CoordinationStudy, method: str, most: int) -> Floats:
    """Return the objective after 1, 2, … `most` rounds from one run: clients may finish after each and go on."""
    shared = {"run": "benchmark", "method": method}
    machines = [
        Client(str(k), rows, config.budget, seed=config.seed, **shared) for k, rows in enumerate(draw_clients(config))
    ]
    server = Server({machine.name: config.budget for machine in machines}, config.dimension, most, **shared)
    word, found = None, []
    while not server.done:
        for machine in machines:
            server.receive(machine.begin() if word is None else machine.step(word))
        word = server.broadcast()
        total = sum(m.pool.combine(indicator(m.finish(word), config.pool)).astype(np.float64) for m in machines)
        found.append(total @ total)
    return np.array(found)


def small(clients: int, dimension: int) -> None:
    """Print corrective / alternating for every number of rounds, a row a seed."""
    print(f"\nM = {clients}, d = {dimension}: corrective / alternating after 1, 2, … {MOST} rounds")
    rows = []
    for seed in SMALL_SEEDS:
        config = CoordinationStudy(clients=clients, dimension=dimension, seed=seed)
        ours, papers = (every_number_of_rounds(config, method, MOST) for method in ("corrective", "alternating"))
        rows.append(ours / papers)
        print(f"seed {seed:3}:", " ".join(f"{value:.3f}" for value in rows[-1]), flush=True)
    found = np.array(rows)
    print("mean:    ", " ".join(f"{value:.3f}" for value in found.mean(axis=0)))
    print("worst:   ", " ".join(f"{value:.3f}" for value in found.max(axis=0)))
    print(f"worst of all {found.max():.3f}; {(found > 1).sum()} of {found.size} above 1")


PARTS = {
    "as it is": {"FEW": corrective.FEW},
    "κ = 1 all the time": {"FEW": math.inf, "DAMPING": 4.0, "FALL": 1.0},
    "no damping": {"DAMPING": 0.0},
    "neither (Frank-Wolfe, κ = 1)": {"FEW": math.inf, "DAMPING": 0.0, "FALL": 1.0},
}


def parts() -> None:
    """Print what corrective is without one part or the other, as ratios to the bound."""
    for size in (20, 1000):
        config = CoordinationStudy(clients=size)
        clients = draw_clients(config)
        lower, _ = joint_bound(clients, config.budget)
        print(f"\nM = {size}, d = {config.dimension}, seed 0: objective / bound after 1, 2, 4, 8, 16 rounds")
        for name, constants in PARTS.items():
            with mock.patch.multiple(corrective, **constants):
                found = [coordinate(clients, config.budget, rounds=rounds) for rounds in (1, 2, 4, 8, 16)]
            print(f"{name:30}", " ".join(f"{one.objective / lower:7.3f}" for one in found))
    print("\nversions:", versions())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    with threadpool_limits(1):
        if options.parts:
            parts()
            return
        if options.small:
            for clients, dimension in product((20, 200), (300, 2000)):
                small(clients, dimension)
        else:
            for seed in SEEDS:
                show(run(CoordinationStudy(seed=seed, rounds=ROUNDS)))
    print("\nversions:", versions())


if __name__ == "__main__":
    main()
