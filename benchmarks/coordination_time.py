"""Time a round at M = 1000, and where it goes.

    python -m benchmarks.coordination_time

All clients run one after another in one process; a real client does its own part only.
"""

import argparse
import time
from collections import defaultdict
from functools import wraps

from threadpoolctl import threadpool_limits

from coreplay import coordinate
from coreplay.coordination import client, messages, method, server
from coreplay.experiments.coordination_study import CoordinationStudy, draw_clients
from coreplay.runtime.run_dir import versions
from coreplay.selection.solvers import in_groups

PARTS = [
    (method.Candidates, "project", "Gᵀv"),
    (method.Candidates, "combine", "Gx"),
    (in_groups, "polish", "the first, uncoordinated choice"),
    (in_groups, "search", "swap search"),
    (in_groups, "minimise", "convex programme"),
    (messages.Contribution, "to_bytes", "message to bytes"),
    (server.Server, "receive", "server: check and add"),
    (server.Server, "broadcast", "server: mix and broadcast"),
    (client.Client, "_rng", "random generators"),
    (client.Client, "_past", "the client's earlier answers"),
]


def measured(spent, owner, name, label):
    """Put a stopwatch around a function."""
    function = getattr(owner, name)

    @wraps(function)
    def watched(*args, **kwargs):
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[label] += time.perf_counter() - began

    setattr(owner, name, watched)
    return lambda: setattr(owner, name, function)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    config = CoordinationStudy(clients=options.clients, dimension=options.dimension)
    clients = draw_clients(config)
    with threadpool_limits(1):
        for name in config.methods:
            coordinate(clients[:3], config.budget, name, 2)  # compile
            began = time.perf_counter()
            coordinate(clients, config.budget, name, 0)
            alone = time.perf_counter() - began
            began = time.perf_counter()
            coordinate(clients, config.budget, name, options.rounds)
            plain = time.perf_counter() - began
            spent: dict[str, float] = defaultdict(float)
            undo = [measured(spent, *part) for part in PARTS]
            began = time.perf_counter()
            coordinate(clients, config.budget, name, options.rounds)
            total = time.perf_counter() - began
            for restore in undo:
                restore()
            print(f"\n{name}, M = {config.clients}, d = {config.dimension}, {options.rounds} rounds:")
            print(f"selection alone {alone:.2f} s, coordinated {plain:.2f} s, ratio {plain / alone:.2f};", end=" ")
            a_round = (plain - alone) / options.rounds
            print(f"{a_round:.3f} s a round, {1e3 * a_round / config.clients:.3f} ms a client")
            for label, seconds in sorted(spent.items(), key=lambda item: -item[1]):
                print(f"  {label:32} {seconds:6.2f} s  {seconds / total:5.1%}")
            print(f"  {'the rest (Python, numpy calls)':32} {total - sum(spent.values()):6.2f} s")
    print("\nversions:", versions())


if __name__ == "__main__":
    main()
