"""Swap search and the exact optimum, against enumeration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay.selection.solvers.branch_and_bound import solve
from coreplay.selection.solvers.swaps import polish, search, top
from tests.selection.problems import best_by_enumeration, gram, problems


def value(K, c, kept):
    return K[np.ix_(kept, kept)].sum() + 2 * c[kept].sum()


@given(problems(most=20), st.booleans(), st.integers(0, 30))
def test_no_swap_improves_what_the_search_found(problem, with_linear, moves):
    kind, n, seed, budget = problem
    K, rng = gram(kind, n, seed), np.random.default_rng(seed)
    c = rng.normal(size=n) if with_linear else np.zeros(n)
    start = np.sort(rng.permutation(n)[:budget])
    kept, found = search(K, c, start, moves, rng)
    assert len(set(kept)) == budget
    assert found == pytest.approx(value(K, c, kept), abs=1e-9)
    assert found <= value(K, c, start) + 1e-9
    outside = sorted(set(range(n)) - set(kept))
    for slot, j in product(range(budget), outside):
        swapped = kept.copy()
        swapped[slot] = j
        assert value(K, c, swapped) >= found - 1e-9


def test_polish_finds_the_optimum_of_small_problems():
    hits = []
    for seed in range(60):
        K = gram("clustered", 14, seed)
        kept, found = polish(K, 5, np.random.default_rng(seed))
        assert found == pytest.approx(K[np.ix_(kept, kept)].sum())
        hits.append(found <= best_by_enumeration(K, 5) + 1e-9)
    assert np.mean(hits) >= 0.98


@given(problems(most=14))
def test_polish_with_a_linear_term_beats_the_relaxation(problem):
    kind, n, seed, budget = problem
    K = gram(kind, n, seed)
    c = np.random.default_rng(seed).normal(size=n)
    kept, found = polish(K, budget, np.random.default_rng(0), linear=c)
    assert found == pytest.approx(value(K, c, kept), abs=1e-9)
    by_price = top(-(K.diagonal() + 2 * c), budget)
    swapped, best_from_price = search(K, c, by_price, 400, np.random.default_rng(1))
    assert found <= max(best_from_price, value(K, c, swapped)) + 0.3 * budget


def test_top_takes_the_first_of_equals():
    assert top(np.array([0.5, 1.0, 0.5, 0.5]), 2).tolist() == [0, 1]


@settings(max_examples=200)
@given(problems(most=12))
def test_exact_equals_enumeration(problem):
    kind, n, seed, budget = problem
    K = gram(kind, n, seed)
    best = solve(K, budget, np.random.default_rng(seed))
    assert best.proved
    assert best.gap == 0
    assert best.value == pytest.approx(K[np.ix_(best.indices, best.indices)].sum(), abs=1e-9)
    assert best.value == pytest.approx(best_by_enumeration(K, budget), abs=1e-9)


@settings(max_examples=20)
@given(problems(most=20, least=16))
def test_exact_equals_enumeration_on_larger_pools(problem):
    kind, n, seed, _ = problem
    K = gram(kind, n, seed)
    for budget in (4, 5):
        best = solve(K, budget, np.random.default_rng(seed))
        assert best.value == pytest.approx(best_by_enumeration(K, budget), abs=1e-9)


@pytest.mark.parametrize("kind", ["generic", "clustered", "low_rank", "all_alike"])
def test_a_time_limit_leaves_a_true_bound(kind):
    K = gram(kind, 60, 1)
    best = solve(K, 12, np.random.default_rng(0), time_limit=0.05)
    better = polish(K, 12, np.random.default_rng(1), moves=20_000)[1]
    assert best.bound <= better + 1e-9
    assert best.bound <= best.value
    assert 0 <= best.gap <= 1
    assert best.value == pytest.approx(K[np.ix_(best.indices, best.indices)].sum())


def test_no_time_at_all_still_gives_a_selection_and_a_bound():
    K = gram("generic", 40, 2)
    best = solve(K, 6, np.random.default_rng(0), time_limit=1e-9)
    proved = solve(K, 6, np.random.default_rng(0))
    assert proved.proved
    assert best.bound <= proved.value + 1e-9 <= best.value + 2e-9


def test_every_set_of_equal_samples_is_visited_once():
    """Not once for every order in which it can be put together."""
    best = solve(np.ones((14, 14)), 12, np.random.default_rng(0))
    assert best.proved
    assert best.value == 144
    assert best.nodes < 2**14
