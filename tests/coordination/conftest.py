"""Small random problems, and slow, obvious references for them."""

from types import SimpleNamespace

import clarabel
import numpy as np
import pytest
from scipy import sparse


def draw(seed, clients=4, pool=8, dimension=6, shift=0.4):
    """Return unit gradients of some clients that share a common direction."""
    rng = np.random.default_rng(seed)
    out = [rng.normal(size=(pool, dimension)) + shift for _ in range(clients)]
    return [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in out]


def solve(P, q, equalities, values, boxed):
    """Minimise ½zᵀPz + qᵀz subject to equalities and 0 <= z <= 1 for the first `boxed` variables, by Clarabel."""
    n = len(q)
    box = sparse.eye(boxed, n)
    A = sparse.vstack([sparse.csc_matrix(equalities), -box, box]).tocsc()
    b = np.r_[values, np.zeros(boxed), np.ones(boxed)]
    cones = [clarabel.ZeroConeT(len(values)), clarabel.NonnegativeConeT(2 * boxed)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    upper = sparse.triu(sparse.csc_matrix(P)).tocsc()
    return np.array(clarabel.DefaultSolver(upper, np.asarray(q, dtype=float), A, b, cones, settings).solve().x)


def one_client(gram, linear, budget):
    """Minimise xᵀKx + 2cᵀx over the capped simplex."""
    n = len(gram)
    return solve(2 * gram + 1e-12 * np.eye(n), 2 * linear, np.ones((1, n)), [budget], n)


def joint(clients, budgets):
    """Minimise ‖Σ G_m x_m‖² over all clients at once (equation 6); return the x of each and the value."""
    stacked = np.concatenate(clients)
    sizes = [len(rows) for rows in clients]
    groups = np.zeros((len(clients), len(stacked)))
    for m, stop in enumerate(np.cumsum(sizes)):
        groups[m, stop - sizes[m] : stop] = 1
    x = solve(2 * stacked @ stacked.T, np.zeros(len(stacked)), groups, budgets, len(stacked))
    total = x @ stacked
    return np.split(x, np.cumsum(sizes)[:-1]), float(total @ total)


@pytest.fixture
def reference():
    """Return the slow ways to do it."""
    return SimpleNamespace(draw=draw, solve=solve, one_client=one_client, joint=joint)
