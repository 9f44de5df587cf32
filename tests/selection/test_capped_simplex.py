"""The projection and the quadratic programmes over the capped simplex, against general solvers."""

import numpy as np
import osqp
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from coreplay import InputError
from coreplay.selection import minimise, project
from tests.selection.problems import KINDS, gram, problems, solve_by_clarabel, unit


def is_feasible(x, budget):
    return x.min() >= 0 and x.max() <= 1 and abs(x.sum() - budget) <= 1e-9 * len(x)


@given(
    arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e3, 1e3)),
    st.floats(0, 1),
)
def test_projection_is_the_nearest_point(v, share):
    budget = share * len(v)
    x = project(v, budget)
    assert is_feasible(x, budget)
    # a point is the projection just if no feasible direction makes an acute angle with v - x: the best feasible
    # answer to v - x fills its largest entries
    r = v - x
    best = np.sort(r)[::-1]
    whole = int(budget)
    reach = best[:whole].sum() + (budget - whole) * (best[whole] if whole < len(v) else 0)
    assert reach - r @ x <= 1e-7 * (1 + np.abs(v).max() * len(v))


def test_projection_leaves_feasible_points_alone():
    x = np.array([0.0, 0.25, 1.0, 0.75])
    assert project(x, 2.0) == pytest.approx(x)


@settings(max_examples=300)
@given(problems(most=40), st.sampled_from([0.0, 0.1, 1.0, 3.0, 100.0]))
def test_convex_programme_equals_an_interior_point_solver(problem, strength):
    kind, n, seed, budget = problem
    K = gram(kind, n, seed)
    c = strength * np.random.default_rng(seed).normal(size=n)
    found = minimise(K, budget, linear=c)
    assert is_feasible(found.x, budget)
    assert found.value == pytest.approx(found.x @ K @ found.x + 2 * c @ found.x)
    reference = solve_by_clarabel(K, budget, c)
    assert found.value <= reference + 1e-6 * max(abs(reference), 1e-3 * budget)
    assert found.value - found.gap <= reference + 1e-6 * max(abs(reference), 1e-3 * budget)


@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize("dimension", [100, 2000])
def test_convex_programme_equals_osqp(n, dimension):
    rng = np.random.default_rng(n + dimension)
    rows = unit(rng.normal(size=(n, dimension)) + 2 * rng.normal(size=(5, dimension))[rng.integers(5, size=n)])
    K, budget = rows @ rows.T, n // 10
    solver = osqp.OSQP()
    A = sp.vstack([sp.csc_matrix(np.ones((1, n))), sp.eye(n, format="csc")], format="csc")
    low, high = np.r_[budget, np.zeros(n)], np.r_[budget, np.ones(n)]
    P = sp.csc_matrix(np.triu(2 * K))
    solver.setup(P, np.zeros(n), A, low, high, verbose=False, eps_abs=1e-8, eps_rel=1e-8, max_iter=50_000)
    x = solver.solve(raise_error=True).x
    found = minimise(K, budget)
    assert is_feasible(found.x, budget)
    assert found.value <= x @ K @ x + 1e-6 * max(x @ K @ x, 1e-3 * budget)
    assert found.gap <= 1e-6 * max(found.value, 1e-3 * budget)


@given(problems(most=30), st.integers(0, 100))
def test_any_start_leads_to_the_convex_optimum(problem, seed):
    kind, n, gram_seed, budget = problem
    K = gram(kind, n, gram_seed)
    start = np.random.default_rng(seed).uniform(-1, 2, size=n)
    assert minimise(K, budget, start=start).value == pytest.approx(
        minimise(K, budget).value, rel=1e-6, abs=1e-8 * budget
    )


@example(("zeros", 14, 146, 11), False)  # flat directions: the way down neither bends up nor down
@given(problems(most=40), st.booleans())
def test_non_convex_result_is_stationary_and_no_worse_than_its_start(problem, with_linear):
    kind, n, seed, budget = problem
    K = gram(kind, n, seed)
    Z = K - np.diag(K.diagonal())
    rng = np.random.default_rng(seed)
    c = rng.normal(size=n) if with_linear else np.zeros(n)
    start = project(rng.uniform(size=n), float(budget))
    found = minimise(K, budget, linear=c, diagonal="zero", start=start)
    assert is_feasible(found.x, budget)
    assert found.value == pytest.approx(found.x @ Z @ found.x + 2 * c @ found.x, abs=1e-9)
    assert found.value <= start @ Z @ start + 2 * c @ start + 1e-9
    assert found.gap <= 1e-6 * max(abs(found.value), 1e-3 * budget)


def test_non_convex_result_is_as_good_as_slsqp_on_average():
    ratios = []
    for seed in range(20):
        K = gram("clustered", 30, seed)
        Z = K - np.eye(30)
        whole = {"type": "eq", "fun": lambda x: x.sum() - 5, "jac": lambda x: np.ones(30)}
        reference = minimize(
            lambda x, Z=Z: x @ Z @ x,
            np.full(30, 5 / 30),
            jac=lambda x, Z=Z: 2 * Z @ x,
            bounds=[(0, 1)] * 30,
            constraints=whole,
            method="SLSQP",
        ).fun
        ratios.append((5 + minimise(K, 5, diagonal="zero").value) / (5 + reference))
    assert np.mean(ratios) < 1.02


def test_budget_of_the_whole_pool_takes_all():
    for kind in KINDS:
        K = gram(kind, 6, 0)
        assert minimise(K, 6).x == pytest.approx(np.ones(6))
        assert minimise(K, 6, diagonal="zero").x == pytest.approx(np.ones(6))


def test_unknown_diagonal_is_refused():
    with pytest.raises(InputError, match="unknown diagonal 'zeros': did you mean 'zero'"):
        minimise(np.eye(3), 1, diagonal="zeros")


def test_a_linear_term_alone_decides_among_zero_gradients():
    found = minimise(np.zeros((4, 4)), 1, linear=np.array([0.1, 0.02, 0.05, 0.03]))
    assert found.x == pytest.approx([0, 1, 0, 0], abs=1e-6)
