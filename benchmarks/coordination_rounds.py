"""Rounds: corrective against alternating and against the joint relaxed optimum, on generated clients (issue 4).

python -m benchmarks.coordination_rounds            # M = 1000, three seeds
python -m benchmarks.coordination_rounds --small    # M = 20 and 200, d = 300 and 2000, five seeds
"""

import argparse

from threadpoolctl import threadpool_limits

from coreplay import coordinate
from coreplay.experiments.coordination import (
    CoordinationStudy,
    StudyResult,
    draw_clients,
    joint_bound,
    run,
    versions,
)

SEEDS, SMALL_SEEDS = (10, 11, 12), (10, 11, 12, 13, 14)  # the constants of corrective were tuned on seeds 0 to 4
ROUNDS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


def table(result: StudyResult) -> dict[tuple[str, int], float]:
    return {(o.method, o.rounds): o.objective for o in result.outcomes}


def show(result: StudyResult) -> float:
    """Print one problem's table; return the worst ratio of corrective to alternating over the rounds."""
    config, found = result.config, table(result)
    print(
        f"\nM = {config.clients}, n = {config.pool}, N = {config.budget}, d = {config.dimension}, seed {config.seed}:",
        end=" ",
    )
    print(f"joint relaxed optimum between {result.lower:.0f} and {result.upper:.0f}")
    print("rounds  alternating  /bound   corrective  /bound   corrective/alternating")
    worst = 0.0
    for rounds in config.rounds:
        a, c = found["alternating", rounds], found["corrective", rounds]
        worst = max(worst, c / a if rounds else 0.0)
        print(f"{rounds:6d}  {a:11.0f}  {a / result.lower:6.3f}  {c:11.0f}  {c / result.lower:6.3f}   {c / a:6.3f}")
    return worst


PARTS = {
    "as it is": {},
    "κ = 1 from the start": {"caution": 0.0, "damping": 4.0},
    "no damping": {"damping": 0.0},
    "neither (Frank-Wolfe, κ = 1)": {"caution": 0.0, "damping": 0.0},
}


def parts() -> None:
    """Print what corrective is without one part or the other, as ratios to the bound."""
    for size in (20, 1000):
        config = CoordinationStudy(clients=size)
        clients = draw_clients(config)
        lower, _ = joint_bound(clients, config.budget)
        print(f"\nM = {size}, d = {config.dimension}, seed 0: objective / bound after 1, 2, 4, 8, 16 rounds")
        for name, options in PARTS.items():
            found = [coordinate(clients, config.budget, rounds=rounds, **options) for rounds in (1, 2, 4, 8, 16)]
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
        if not options.small:
            for seed in SEEDS:
                result = run(CoordinationStudy(seed=seed, rounds=ROUNDS))
                show(result)
                found = table(result)
                print(f"corrective 1 / alternating 4:  {found['corrective', 1] / found['alternating', 4]:.3f}")
                print(f"corrective 4 / alternating 16: {found['corrective', 4] / found['alternating', 16]:.3f}")
        else:
            for clients in (20, 200):
                for dimension in (300, 2000):
                    worst, means = [], dict.fromkeys(ROUNDS, 0.0)
                    for seed in SMALL_SEEDS:
                        config = CoordinationStudy(clients=clients, dimension=dimension, seed=seed, rounds=ROUNDS)
                        result = run(config)
                        worst.append(show(result))
                        found = table(result)
                        for rounds in ROUNDS:
                            means[rounds] += (
                                found["corrective", rounds] / found["alternating", rounds] / len(SMALL_SEEDS)
                            )
                    print(f"\nM = {clients}, d = {dimension}: mean corrective/alternating by rounds:", end=" ")
                    print(" ".join(f"{rounds}: {value:.3f}" for rounds, value in means.items()))
                    print("worst seed and number of rounds (from 1):", " ".join(f"{value:.3f}" for value in worst))
        print("\nversions:", result.versions)


if __name__ == "__main__":
    main()
