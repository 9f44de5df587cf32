"""Programmes with a number of samples per group, against brute force and a general convex solver."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize

from coreplay.selection.solvers import capped_simplex, in_groups, swaps


def problem(seed, sizes, kept):
    """Return a gram, a linear term and groups whose samples are scattered over the pool."""
    rng = np.random.default_rng(seed)
    unit = rng.normal(size=(sum(sizes), 7)) + 0.3
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    parts = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    return unit @ unit.T, rng.normal(size=sum(sizes)), [(np.sort(p), k) for p, k in zip(parts, kept, strict=True)]


def value(gram, linear, x):
    return float(x @ gram @ x + 2 * linear @ x)


def best_selection(gram, linear, groups):
    """Return the least value of all selections that keep the numbers."""
    choices = product(*(combinations(rows.tolist(), many) for rows, many in groups))
    every = (np.array(sum(choice, ())) for choice in choices)
    return min(value(gram, linear, in_groups.indicator(chosen, len(gram))) for chosen in every)


@pytest.mark.parametrize("seed", range(8))
def test_polish_finds_the_best_selection_of_small_pools_nearly_always(seed):
    gram, linear, groups = problem(seed, (4, 3, 3), (2, 1, 2))
    best = best_selection(gram, linear, groups)
    chosen = in_groups.polish(gram, linear, groups, np.random.default_rng(0))
    again = in_groups.search(gram, linear, groups, in_groups.top(-linear, groups), 20, np.random.default_rng(0))
    found = min(value(gram, linear, in_groups.indicator(kept, len(gram))) for kept in (chosen, again))
    assert best - 1e-9 <= found <= best + 0.05 * abs(best)


@pytest.mark.parametrize("seed", range(6))
def test_minimise_is_the_optimum_of_a_general_solver(seed):
    gram, linear, groups = problem(seed, (5, 4, 6), (2, 1, 3))
    sums = np.array([in_groups.indicator(rows, len(gram)) for rows, _ in groups])
    start = sums.T @ np.array([many / len(rows) for rows, many in groups])
    reference = minimize(
        lambda x: value(gram, linear, x),
        start,
        jac=lambda x: 2 * (gram @ x + linear),
        bounds=[(0, 1)] * len(gram),
        constraints=LinearConstraint(sums, [many for _, many in groups], [many for _, many in groups]),
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    x = in_groups.minimise(gram, linear, groups)
    assert x.min() >= 0
    assert x.max() <= 1
    assert sums @ x == pytest.approx([many for _, many in groups])
    assert value(gram, linear, x) == pytest.approx(reference.fun, rel=1e-4, abs=1e-4)


cases = st.lists(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1, max_size=4)


@given(cases=cases.filter(lambda found: sum(kept for _, kept in found) > 0), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_all_keep_the_numbers_of_each_group(cases, seed):
    gram, linear, groups = problem(seed, *zip(*cases, strict=True))
    rng = np.random.default_rng(seed)
    x = in_groups.minimise(gram, linear, groups)
    zero = in_groups.minimise(gram, linear, groups, diagonal="zero")
    start = in_groups.top(x, groups)
    searched = in_groups.search(gram, linear, groups, start, 5, rng)
    for kept in (start, searched, in_groups.polish(gram, linear, groups, rng), in_groups.sample(x, groups, rng)):
        assert (np.diff(kept) > 0).all()
        assert [np.isin(rows, kept).sum() for rows, _ in groups] == [many for _, many in groups]
    for relaxed in (x, zero):
        assert [relaxed[rows].sum() for rows, _ in groups] == pytest.approx([many for _, many in groups])
    found, before = (value(gram, linear, in_groups.indicator(kept, len(gram))) for kept in (searched, start))
    assert found <= before + 1e-9


def test_one_group_is_the_programme_without_groups():
    gram, linear, _ = problem(0, (12,), (4,))
    groups, rngs = [(np.arange(12), 4)], [np.random.default_rng(1) for _ in range(4)]
    assert np.array_equal(in_groups.top(linear, groups), swaps.top(linear, 4))
    start = swaps.top(linear, 4)
    found, expected = in_groups.search(gram, linear, groups, start, 9, rngs[0]), swaps.search
    assert found.tolist() == sorted(expected(gram, linear, start, 9, rngs[1])[0])
    polished = in_groups.polish(gram, linear, groups, rngs[2])
    assert polished.tolist() == swaps.polish(gram, 4, rngs[3], linear=linear)[0].tolist()
    relaxed = in_groups.minimise(gram, linear, groups, diagonal="zero")
    assert relaxed.tolist() == capped_simplex.minimise(gram, 4, linear=linear, diagonal="zero").x.tolist()


def test_systematic_sampling_takes_samples_as_often_as_x_says():
    x = np.array([1.0, 0.2, 0.3, 0.5, 0.9, 0.1])
    groups = [(np.array([0, 1, 2, 3]), 2), (np.array([4, 5]), 1)]
    rng = np.random.default_rng(0)
    counts = sum(in_groups.indicator(in_groups.sample(x, groups, rng), 6) for _ in range(4000))
    np.testing.assert_allclose(counts / 4000, x, atol=4 * np.sqrt(0.25 / 4000))
