"""Drop-outs: 30 % of the clients miss each round, the last one included.

    python -m benchmarks.coordination_dropouts

A client that misses round k gets no broadcast before it and sends nothing in it; one that misses the end keeps what it
last answered. Both sides are the same clients and seeds, with and without drop-outs.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from coreplay import coordinate
from coreplay.coordination import Client, Server
from coreplay.experiments.coordination_study import CoordinationStudy, draw_clients, joint_bound
from coreplay.runtime.run_dir import versions
from coreplay.selection.solvers.in_groups import indicator


def objective_with_dropouts(
    clients: list[NDArray[np.float32]], budget: int, method: str, rounds: int, seed: int, gone: NDArray[np.bool_]
) -> float:
    """Coordinate while `gone` (client, round) says who is missing, and return the objective of what is kept."""
    halves = [
        Client(str(m), rows, budget, run="coordinate", seed=seed, method=method) for m, rows in enumerate(clients)
    ]
    server = Server(
        {half.name: budget for half in halves}, clients[0].shape[1], rounds, run="coordinate", method=method
    )
    broadcast = None
    for k in range(rounds):
        for m in np.flatnonzero(~gone[:, k]):
            server.receive(halves[m].begin() if broadcast is None else halves[m].step(broadcast))
        broadcast = server.broadcast()
    total = np.zeros(server.dimension)
    for m, half in enumerate(halves):
        kept = half.finish(None if gone[m, rounds] else broadcast)
        total += half.pool.matrix.combine(indicator(kept, half.pool.size))
    return float(total @ total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--share", type=float, default=0.3)
    options = parser.parse_args()
    with threadpool_limits(1):
        for seed in (0, 1, 2):
            config = CoordinationStudy(clients=options.clients, seed=seed)
            clients = draw_clients(config)
            lower, _ = joint_bound(clients, config.budget)
            print(f"\nM = {config.clients}, seed {seed}, {options.share:.0%} miss each round; lower bound {lower:.0f}")
            print("method       rounds      steady   dropping   ratio   dropping/bound")
            for method in config.methods:
                for rounds in (4, 8, 16):
                    gone = np.random.default_rng(seed).random((config.clients, rounds + 1)) < options.share
                    steady = coordinate(clients, config.budget, method, rounds, seed).objective
                    dropping = objective_with_dropouts(clients, config.budget, method, rounds, seed, gone)
                    ratios = f"{dropping / steady:6.3f}   {dropping / lower:6.3f}"
                    print(f"{method:12} {rounds:6d}  {steady:10.0f} {dropping:10.0f}  {ratios}")
    print("\nversions:", versions())


if __name__ == "__main__":
    main()
