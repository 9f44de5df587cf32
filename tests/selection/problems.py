"""Random problems that the selection tests share, and the slow, obvious references they are held against."""

from itertools import combinations

import clarabel
import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

KINDS = ("generic", "low_rank", "clustered", "duplicates", "zeros", "opposed", "all_alike")


def unit(rows):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def gradients(kind, n, seed):
    rng = np.random.default_rng([n, seed])
    rows = rng.normal(size=(n, 3 if kind == "low_rank" else 2 * n))
    if kind == "clustered":
        rows += 3 * rng.normal(size=(3, rows.shape[1]))[rng.integers(3, size=n)]
    if kind == "duplicates":
        rows = rows[rng.integers(max(n // 2, 1), size=n)]
    if kind == "zeros":
        rows[rng.random(n) < 0.3] = 0
    if kind == "opposed":
        rows[n // 2 : 2 * (n // 2)] = -rows[: n // 2]
    if kind == "all_alike":
        rows = np.ones((n, 1)) + 1e-9 * rows
    return rows


def gram(kind, n, seed):
    rows = unit(gradients(kind, n, seed))
    return rows @ rows.T


@st.composite
def problems(draw, most=12, least=2):
    """Draw a kind of gram with its size, seed and a budget below the size."""
    n = draw(st.integers(least, most))
    return draw(st.sampled_from(KINDS)), n, draw(st.integers(0, 10_000)), draw(st.integers(1, n - 1))


def best_by_enumeration(K, budget):
    return min(K[np.ix_(s, s)].sum() for s in map(list, combinations(range(len(K)), budget)))


def solve_by_clarabel(K, budget, linear):
    """Minimise xᵀKx + 2cᵀx over the capped simplex with a general interior-point solver."""
    n = len(K)
    A = sp.csc_matrix(np.vstack([np.ones((1, n)), -np.eye(n), np.eye(n)]))
    b = np.concatenate([[budget], np.zeros(n), np.ones(n)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(2 * n)]
    P = sp.csc_matrix(np.triu(2 * K))
    x = np.clip(clarabel.DefaultSolver(P, 2 * linear, A, b, cones, settings).solve().x, 0, 1)
    return x @ K @ x + 2 * linear @ x


NEEDS = {  # what a selector needs to know besides gradients
    "approximate_uniform": ("new", "seen"),
    "balanced": ("new", "seen"),
    "fixed_proportion": ("new",),
    "reservoir": ("new", "seen"),
    "period_balanced": ("arrived",),
    "class_balanced": ("label",),
    "bilevel_coreset": ("label",),
    "loss_stratified": ("losses",),
}


def pool_arguments(method, n):
    """Tell those methods that care that a third of the pool is old, and the columns that they need."""
    columns = {"arrived": np.arange(n) % 3, "label": np.arange(n) % 2, "losses": np.linspace(0, 1, n)}
    given = {"new": np.arange(n) >= n // 3, "seen": 2 * n}
    needs = NEEDS.get(method, ())
    found = {name: value for name, value in given.items() if name in needs}
    return found | {"columns": {name: columns[name] for name in needs if name in columns}}
