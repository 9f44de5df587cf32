"""Selection against general solvers and enumeration: python -m benchmarks.selection.

Problems are the near-optimality experiment's own, both mixtures, seeds fixed. Each side passes over all problems, the
sides in turns; a time is the median pass divided by the number of problems. The lines "call by call" change sides after
every single problem instead, so that each call finds the processor's caches full of the other side's work. All on one
thread, except where a gram is computed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import osqp
import scipy.sparse as sp
from numba import njit
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from benchmarks.common import header, line, mean, pair
from coreplay.experiments.near_optimality import MIXTURES, draw
from coreplay.seeding import generator
from coreplay.selection import minimise, select
from coreplay.selection.pool import make_pool
from coreplay.selection.solvers.branch_and_bound import solve
from coreplay.selection.solvers.swaps import polish


def problem(n: int, k: int, mixture: str, dimension: int = 300) -> Any:
    return make_pool(draw(generator(0, "benchmark", n, k), n, mixture, dimension=dimension)).gram


def over(
    problems: list[Any], ours: Callable[[Any], Any], theirs: Callable[[Any], Any], repeats: int
) -> tuple[float, float]:
    times = pair(lambda: [ours(K) for K in problems], lambda: [theirs(K) for K in problems], repeats)
    return times[0] / len(problems), times[1] / len(problems)


def call_by_call(
    problems: list[Any], ours: Callable[[Any], Any], theirs: Callable[[Any], Any], repeats: int
) -> tuple[float, float]:
    times = [pair(lambda K=K: ours(K), lambda K=K: theirs(K), repeats) for K in problems]
    return mean([t[0] for t in times]), mean([t[1] for t in times])


def slsqp(K: Any, budget: int) -> Any:
    n = len(K)
    Z = K - np.diag(K.diagonal())
    whole = {"type": "eq", "fun": lambda x: x.sum() - budget, "jac": lambda x: np.ones(n)}
    start, bounds = np.full(n, budget / n), [(0.0, 1.0)] * n
    return minimize(
        lambda x: x @ Z @ x, start, jac=lambda x: 2 * Z @ x, bounds=bounds, constraints=whole, method="SLSQP"
    ).x


def slsqp_without_gradient(K: Any, budget: int) -> Any:
    """Solve as a user does who writes down the objective and nothing else."""
    n = len(K)
    Z = K - np.diag(K.diagonal())
    whole = {"type": "eq", "fun": lambda x: x.sum() - budget}
    start, bounds = np.full(n, budget / n), [(0.0, 1.0)] * n
    return minimize(lambda x: x @ Z @ x, start, bounds=bounds, constraints=whole, method="SLSQP").x


def osqp_solve(K: Any, budget: int) -> Any:
    n = len(K)
    A = sp.vstack([sp.csc_matrix(np.ones((1, n))), sp.eye(n, format="csc")], format="csc")
    solver = osqp.OSQP()
    low, high = np.r_[budget, np.zeros(n)], np.r_[budget, np.ones(n)]
    P = sp.csc_matrix(np.triu(2 * K))
    solver.setup(P, np.zeros(n), A, low, high, verbose=False, eps_abs=1e-7, eps_rel=1e-7, max_iter=20_000)
    return np.clip(solver.solve(raise_error=False).x, 0, 1)


@njit(cache=True)
def enumerate_nested(K: Any) -> float:
    """Return the optimum of five by five nested loops with partial sums, which the compiler vectorises."""
    n, best = K.shape[0], np.inf
    for a in range(n):
        for b in range(a + 1, n):
            two = K[a, a] + K[b, b] + 2 * K[a, b]
            for c in range(b + 1, n):
                three = two + K[c, c] + 2 * (K[a, c] + K[b, c])
                for d in range(c + 1, n):
                    four = three + K[d, d] + 2 * (K[a, d] + K[b, d] + K[c, d])
                    for e in range(d + 1, n):
                        best = min(best, four + K[e, e] + 2 * (K[a, e] + K[b, e] + K[c, e] + K[d, e]))
    return best


@njit(cache=True)
def enumerate_any(K: Any, budget: int) -> float:
    """Return the optimum of any number by stepping through all combinations, partial sums kept per place."""
    n, best = K.shape[0], np.inf
    chosen, value = np.arange(budget), np.zeros(budget + 1)
    place = 0
    while True:
        for k in range(place, budget):
            i = chosen[k]
            total = value[k] + K[i, i]
            for t in range(k):
                total += 2 * K[i, chosen[t]]
            value[k + 1] = total
        best = min(best, value[budget])
        place = budget - 1
        while place >= 0 and chosen[place] == n - budget + place:
            place -= 1
        if place < 0:
            return best
        chosen[place] += 1
        for k in range(place + 1, budget):
            chosen[k] = chosen[k - 1] + 1


def main() -> None:
    header("scipy", "osqp")
    rng = np.random.default_rng(0)
    with threadpool_limits(1):
        for mixture in MIXTURES:
            small = [problem(50, k, mixture) for k in range(20)]
            for name, peer in (("SLSQP", slsqp_without_gradient), ("SLSQP given the gradient", slsqp)):
                for way, timed in (("", over), (", call by call", call_by_call)):
                    ours, theirs = timed(small, lambda K: polish(K, 5, rng), lambda K, peer=peer: peer(K, 5), 5)
                    line(
                        f"polished / {name}, n 50, {mixture}{way}",
                        ours,
                        theirs,
                        ">= 200x" if not way and peer is slsqp_without_gradient else "-",
                    )
            for n, budget, count, dimension in (
                (50, 5, 20, 300),
                (200, 20, 20, 300),
                (1000, 50, 5, 300),
                (1000, 50, 5, 4096),
            ):
                problems = [problem(n, k, mixture, dimension) for k in range(count)]
                excess = max(
                    minimise(K, budget).value / max(float(x @ K @ x), 1e-6 * budget) - 1
                    for K in problems
                    for x in [osqp_solve(K, budget)]
                )
                ours, theirs = over(
                    problems, lambda K, b=budget: minimise(K, b), lambda K, b=budget: osqp_solve(K, b), 3
                )
                note = f"our objective at most {max(excess, 0):.0e} above"
                line(f"convex / OSQP, n {n}, d {dimension}, {mixture}", ours, theirs, ">= 10x", note)
            many = [problem(50, 1000 + k, mixture) for k in range(200)]
            wrong = sum(abs(solve(K, 5, rng).value - enumerate_nested(K)) > 1e-9 for K in many)
            for name, peer in (("any N", lambda K: enumerate_any(K, 5)), ("5 nested loops", enumerate_nested)):
                ours, theirs = over(many, lambda K: solve(K, 5, rng), peer, 3)
                line(f"exact / enumeration, {name}, {mixture}", ours, theirs, ">= 5x", f"{wrong} of 200 optima differ")
    centres = rng.normal(size=(20, 4096))
    rows = (centres[rng.integers(20, size=5000)] + rng.normal(size=(5000, 4096))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    K = (rows @ rows.T).astype(np.float64)
    for precision in (np.float32, np.float64):
        G = rows.astype(precision)
        ours, theirs = pair(lambda: select(gram=K, budget=500), lambda G=G: G @ G.T, 3)
        line(f"polished 500 of 5000 / the gram, {precision.__name__}, d 4096", ours, theirs, ">= 0.2x")


if __name__ == "__main__":
    main()
