"""Matching the mean of all pools: joint choices with and without quotas, against random and lone ones; and roundings.

    python -m benchmarks.coordination_target

Clients are those of `coordination_rounds`; the samples of a client arrived in five periods, ten in each, and a quota
keeps one of each period. All figures are of the samples that are kept, and every row has the ratio to a random choice
with the same quota from the same run.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from coreplay import coordinate, select
from coreplay.experiments.coordination_study import CoordinationStudy, draw_clients
from coreplay.runtime.run_dir import versions

SEEDS, ROUNDS = (10, 11, 12), (1, 4)
PERIODS = 5
ROUNDINGS = ("top", "sampling", "exchange")
Clients = list[NDArray[np.float32]]
Kept = list[NDArray[np.int64]]


def squared_distance(clients: Clients, kept: Kept, target: NDArray[np.float64]) -> float:
    """Return ‖Σ kept − target‖²."""
    total = sum(rows[chosen].sum(axis=0, dtype=np.float64) for rows, chosen in zip(clients, kept, strict=True))
    return float(np.sum((total - target) ** 2))


def mean_target(config: CoordinationStudy, quota: str) -> None:
    """Print the squared distance to the mean of all pools, for every way to choose."""
    clients = draw_clients(config)
    columns = [{"arrived": np.arange(config.pool) % PERIODS}] * config.clients
    share = config.budget / config.pool
    target = sum(share * rows.sum(axis=0, dtype=np.float64) for rows in clients)

    def alone(method: str, **options: object) -> Kept:
        return [
            select(rows, budget=config.budget, method=method, seed=k, quota=quota, columns=columns[k], **options)
            for k, rows in enumerate(clients)
        ]

    random = squared_distance(clients, alone("naive_uniform"), target)
    print(f"\ntarget mean, seed {config.seed}, quota {quota}: ‖Σ kept − target‖², and as a ratio to random")

    def show(name: str, kept: Kept) -> None:
        found = squared_distance(clients, kept, target)
        print(f"{name:36} {found:10.1f}  {random:10.1f}  {found / random:7.3f}", flush=True)

    show("gradient_matching, each alone", alone("gradient_matching", weighted=False))
    for method, rounding in (("corrective", None), *(("alternating", name) for name in ROUNDINGS)):
        options = {} if rounding is None else {"rounding": rounding}
        for rounds in ROUNDS:
            about = (clients, config.budget, method, rounds, config.seed)
            found = coordinate(*about, quota=quota, columns=columns, target="mean", **options)
            label = method if rounding is None else f"{method}, {rounding}"
            show(f"{label}, {rounds} round{'s' * (rounds > 1)}", found.selections)


def zero_target(config: CoordinationStudy) -> None:
    """Print the paper's objective by rounding of alternating."""
    clients = draw_clients(config)
    print(f"\ntarget zero, seed {config.seed}: ‖Σ kept‖² of alternating by rounding, and as a ratio to top")
    for rounds in (1, 4, 16):
        about = (clients, config.budget, "alternating", rounds, config.seed)
        found = {name: coordinate(*about, rounding=name).objective for name in ROUNDINGS}
        ratios = ", ".join(f"{name} {value:.0f} ({value / found['top']:.3f})" for name, value in found.items())
        print(f"{rounds:2} rounds: {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    with threadpool_limits(1):
        for seed in options.seeds:
            config = CoordinationStudy(clients=options.clients, seed=seed)
            if seed == options.seeds[0]:
                print(f"M = {config.clients}, n = {config.pool}, N = {config.budget}, d = {config.dimension}")
            for quota in ("none", "period"):
                mean_target(config, quota)
            zero_target(config)
    print("\nversions:", versions())


if __name__ == "__main__":
    main()
