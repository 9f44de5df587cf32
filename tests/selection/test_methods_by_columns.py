"""Selectors that know more than gradients, against brute force or plain loops, and any selector inside quotas."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import coreplay
from coreplay.errors import InputError
from coreplay.selection import make_pool, select_from
from coreplay.selection.methods.gradient_matching import matched
from coreplay.selection.quotas import even_split


def some(n, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), budget=st.integers(0, 40), seed=st.integers(0, 9))
def test_an_even_split_is_as_even_as_sizes_allow(sizes, budget, seed):
    found = even_split(np.array(sizes), budget, np.random.default_rng(seed))
    assert found.sum() == min(budget, sum(sizes))
    assert (found <= sizes).all()
    for k, size in enumerate(sizes):  # nobody who could keep more has two fewer than another
        assert found[k] == size or found[k] >= found.max() - 1


@settings(max_examples=30, deadline=None)
@given(
    arrived=st.lists(st.integers(0, 3), min_size=8, max_size=20),
    budget=st.integers(1, 7),
    method=st.sampled_from(["polished", "naive_uniform", "facility_location", "herding"]),
)
def test_any_selector_inside_quotas_keeps_every_period_alike(arrived, budget, method):
    sizes = Counter(arrived)
    kept = coreplay.select(
        some(len(arrived)), budget=budget, method=method, quota="period", columns={"arrived": arrived}
    )
    found = Counter(np.array(arrived)[kept].tolist())
    most = max(found.values())
    assert sum(found.values()) == budget
    assert all(found[t] == sizes[t] or found[t] >= most - 1 for t in sizes)


def test_inside_a_quota_the_choice_is_that_of_the_selector_alone():
    gradients = some(30)
    labels = np.repeat([0, 1, 2], 10)
    kept = coreplay.select(gradients, budget=9, method="exact", quota="class", columns={"label": labels})
    for label in range(3):
        alone = coreplay.select(gradients[labels == label], budget=3, method="exact")
        np.testing.assert_array_equal(kept[labels[kept] == label], np.flatnonzero(labels == label)[alone])


def test_new_and_old_as_quotas_have_the_numbers_of_approximate_uniform():
    new = np.arange(20) >= 8
    for seed in range(5):
        kept = coreplay.select(some(20), budget=6, method="polished", quota="new_old", new=new, seen=24, seed=seed)
        assert new[kept].sum() == 2  # 6 * 12 / (12 + 24)


def test_quotas_that_need_a_column_say_so():
    with pytest.raises(InputError, match="needs the column 'arrived'"):
        coreplay.select(some(9), budget=2, quota="period")
    with pytest.raises(InputError, match="quota must be one of none, new_old, period, class: got 'month'"):
        coreplay.select(some(9), budget=2, quota="month")


@pytest.mark.parametrize(("method", "column"), [("period_balanced", "arrived"), ("class_balanced", "label")])
def test_balanced_choices_are_even_and_random(method, column):
    values = np.repeat([0, 1, 2], [30, 4, 1])
    seen = Counter()
    for seed in range(200):
        kept = coreplay.select(some(35), budget=9, method=method, columns={column: values}, seed=seed)
        assert Counter(values[kept].tolist()) == {0: 4, 1: 4, 2: 1}
        seen.update(kept.tolist())
    assert min(seen[k] for k in range(30)) > 8, "200 * 4 / 30 = 27 on average"


def test_the_reservoir_keeps_everything_seen_with_the_same_probability():
    """Three periods of 20, 5 and 15 samples, 6 kept: each of the 40 stays in 15 % of the cases."""
    counts = np.zeros(40)
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        kept, seen = np.empty(0, dtype=int), 0
        for first, last in ((0, 20), (20, 25), (25, 40)):
            pool = np.concatenate([np.arange(first, last), kept])
            new = np.arange(len(pool)) < last - first
            rows = coreplay.select(gram=np.eye(len(pool)), budget=6, method="reservoir", new=new, seen=seen, seed=rng)
            kept, seen = pool[rows], last
        counts[kept] += 1
    assert np.abs(counts / 3000 - 0.15).max() < 0.03  # 4.6 standard deviations


def test_loss_strata_cut_the_hardest_and_cover_the_rest():
    losses = np.concatenate([np.linspace(0, 1, 50), np.full(5, 100.0)])
    for seed in range(20):
        kept = coreplay.select(
            some(55), budget=10, method="loss_stratified", columns={"losses": losses}, strata=5, hardest=0.1, seed=seed
        )
        assert losses[kept].max() <= 1, "the five hardest are cut"
        counts = np.histogram(losses[kept], bins=np.linspace(0, 1, 6))[0]
        assert counts.tolist() == [2] * 5
    arrived = np.arange(55) % 2
    kept = coreplay.select(
        some(55), budget=10, method="loss_stratified", columns={"losses": losses, "arrived": arrived}
    )
    assert arrived[kept].sum() == 5


def test_the_longest_gradients_are_kept():
    gradients = some(20) * np.arange(1, 21)[:, None]
    expected = np.sort(np.argsort(-np.linalg.norm(gradients, axis=1))[:5])
    np.testing.assert_array_equal(coreplay.select(gradients, budget=5, method="gradient_norm"), expected)
    with pytest.raises(InputError, match="needs the column 'norms'"):
        coreplay.select(gram=np.eye(5), budget=2, method="gradient_norm")


def test_facility_location_is_within_its_bound_of_brute_force():
    for seed in range(10):
        pool = make_pool(some(12, seed=seed))
        similarity = 1 + pool.gram

        def value(kept, similarity=similarity):
            return similarity[:, list(kept)].max(axis=1).sum()

        best = max(value(kept) for kept in combinations(range(12), 3))
        found = value(select_from(pool, budget=3, method="facility_location").indices)
        assert best >= found >= (1 - 1 / np.e) * best
        assert found >= 0.97 * best, "far better than its bound in practice"


def test_matching_weights_are_the_least_squares_ones():
    G = some(15, d=40)
    K, wanted = G @ G.T, G @ G.sum(axis=0)
    kept, weights = matched(K, wanted, 5, ridge=0.0)

    def error(w):
        residual = G.sum(axis=0) - w @ G[kept]
        return residual @ residual, -2 * G[kept] @ residual

    reference = minimize(error, np.ones(5), jac=True, bounds=[(0, None)] * 5, method="L-BFGS-B", tol=1e-14)
    np.testing.assert_allclose(weights, reference.x, atol=1e-4)
    random = [
        minimize(
            lambda w, rows=rows: ((G.sum(axis=0) - w @ G[rows]) ** 2).sum(), np.ones(5), bounds=[(0, None)] * 5
        ).fun
        for rows in (np.random.default_rng(s).choice(15, 5, replace=False) for s in range(20))
    ]
    assert reference.fun < np.median(random)


def test_gradient_matching_gives_weights_with_mean_1_and_can_leave_them_out():
    pool = make_pool(some(30))
    found = select_from(pool, budget=6, method="gradient_matching")
    assert found.weights.mean() == pytest.approx(1)
    assert (found.weights > 0).all()
    plain = select_from(pool, budget=6, method="gradient_matching", weighted=False)
    np.testing.assert_array_equal(plain.indices, found.indices)
    assert plain.weights is None


def test_the_bilevel_coreset_is_the_greedy_one_by_solving_every_regression():
    G = some(18, d=5)
    labels = np.random.default_rng(1).integers(3, size=18)
    pool = make_pool(G, columns={"label": labels})
    K, wanted = pool.gram, np.eye(3)[labels]

    def error(kept):
        inner = K[np.ix_(kept, kept)] + 0.1 * np.eye(len(kept))
        return ((K[:, kept] @ np.linalg.solve(inner, wanted[kept]) - wanted) ** 2).sum()

    expected: list[int] = []
    for _ in range(6):
        expected.append(min(set(range(18)) - set(expected), key=lambda j: error([*expected, j])))
    found = select_from(pool, budget=6, method="bilevel_coreset", ridge=0.1).indices
    np.testing.assert_array_equal(found, np.sort(expected))
