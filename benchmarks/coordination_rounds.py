"""Rounds: corrective against alternating and against the joint relaxed optimum, on generated clients (issue 4).

PYTHONPATH=src python benchmarks/coordination_rounds.py            # M = 1000, three seeds
PYTHONPATH=src python benchmarks/coordination_rounds.py --small    # M = 20 and 200, d = 300 and 2000, five seeds
"""

import argparse

from threadpoolctl import threadpool_limits

from coreplay.experiments.coordination import CoordinationStudy, StudyResult, run

SEEDS, SMALL_SEEDS = (0, 1, 2), (0, 1, 2, 3, 4)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    with threadpool_limits(1):
        if not small:
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
