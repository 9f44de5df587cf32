"""Quality of selections made from a sketch with 1000 times fewer numbers, judged by the exact gram.

Run: python benchmarks/gradient_sketch.py
"""

import time

import numpy as np
from gradient_models import masked_loss, print_versions, tinybert, utterances

import coreplay

FEWER = 1000


def main():
    print_versions("numpy")
    print(
        f"{'pool':>5} {'budget':>6} {'size':>6} {'error':>8} {'exact':>8} {'sketch':>8} {'random':>8} {'worse':>7} {'limit':>6}"
    )
    model = tinybert()
    for n, budget in ((64, 5), (64, 20), (256, 20)):
        worse = []
        for seed in range(3):
            batch = utterances(n, seed=seed, shortest=5)
            exact = coreplay.gradient_matrix(model, masked_loss, batch)
            K, size = exact.gram(), exact.dimension // FEWER
            start = time.perf_counter()
            sketch = coreplay.gradient_matrix(
                model, masked_loss, batch, "sketch", size=size, seed=seed
            ).gram()
            seconds = time.perf_counter() - start
            objectives = [
                coreplay.objective(
                    gram=K, kept=coreplay.select(gram=gram, budget=budget, method="polished", seed=0)
                )
                for gram in (K, sketch)
            ]
            rng = np.random.default_rng(seed)
            chance = np.mean(
                [coreplay.objective(gram=K, kept=rng.permutation(n)[:budget]) for _ in range(20)]
            )
            worse.append(objectives[1] / objectives[0] - 1)
            print(
                f"{n:5} {budget:6} {size:6} {np.abs(sketch - K).max():8.4f} {objectives[0]:8.3f} {objectives[1]:8.3f} "
                f"{chance:8.3f} {100 * worse[-1]:6.2f}% {2:5}%   ({seconds:.1f}s)",
                flush=True,
            )
        print(f"{'':13} mean over seeds: {100 * np.mean(worse):.2f} % worse\n")


if __name__ == "__main__":
    main()
