"""Every selector: valid and repeatable; each against a slow, obvious version of itself."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coreplay
from coreplay.selection import make_pool, select_from
from tests.selection.problems import KINDS, best_by_enumeration, gradients, gram, pool_arguments, problems

BY_LENGTH = {"gradient_norm", "gradient_matching"}


@pytest.mark.parametrize("method", coreplay.selectors())
@settings(max_examples=25)
@given(problems(most=30))
def test_a_selection_is_valid_and_repeatable(method, problem):
    kind, n, seed, budget = problem
    if method == "exact":  # proofs take up to minutes for thirty
        n, budget = min(n, 20), min(budget, 20)
    rows, extra = gradients(kind, n, seed), pool_arguments(method, n)
    kept = coreplay.select(rows, budget=budget, method=method, seed=seed, **extra)
    assert kept.dtype == np.int64
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert len(kept) == budget
    assert kept.min() >= 0
    assert kept.max() < n
    again = coreplay.select(rows, budget=budget, method=method, seed=seed, **extra)
    assert kept.tolist() == again.tolist()


@pytest.mark.parametrize("method", sorted(set(coreplay.selectors()) - BY_LENGTH))
def test_scale_does_not_matter_and_a_gram_is_as_good_as_gradients(method):
    rows, extra = gradients("clustered", 24, 3), {"budget": 6, "method": method, **pool_arguments(method, 24)}
    kept = coreplay.select(rows, **extra)
    scaled = rows * np.random.default_rng(0).uniform(0.1, 10, size=(24, 1))
    assert coreplay.select(scaled, **extra).tolist() == kept.tolist()
    assert coreplay.select(gram=scaled @ scaled.T, **extra).tolist() == kept.tolist()


@pytest.mark.parametrize("method", coreplay.selectors())
def test_a_budget_of_the_pool_or_more_keeps_all(method):
    for budget in (5, 9):
        kept = coreplay.select(np.eye(5), budget=budget, method=method, **pool_arguments(method, 5))
        assert kept.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_better_methods_are_not_worse(kind):
    """On average over seeds: exact <= polished <= relaxation <= naive uniform."""
    totals = Counter()
    for seed in range(15):
        K = gram(kind, 18, seed)
        for method in ("exact", "polished", "relaxation", "naive_uniform"):
            totals[method] += coreplay.objective(
                gram=K, kept=coreplay.select(gram=K, budget=5, method=method, seed=seed)
            )
    assert totals["exact"] <= totals["polished"] + 1e-9
    assert totals["polished"] <= totals["relaxation"] + 1e-9
    assert totals["relaxation"] <= totals["naive_uniform"] + 1e-9


def test_naive_uniform_is_uniform():
    counts = np.zeros(8)
    for seed in range(4000):
        counts[coreplay.select(np.eye(8), budget=2, method="naive_uniform", seed=seed)] += 1
    assert np.abs(counts / 4000 - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 4000)


def new_counts(method, budget, new, seen=None, repeats=3000, **options):
    extra = {} if seen is None else {"seen": seen}
    picks = [
        coreplay.select(np.eye(len(new)), budget=budget, method=method, new=new, seed=seed, **extra, **options)
        for seed in range(repeats)
    ]
    return np.array([new[p].sum() for p in picks])


def test_approximate_uniform_takes_its_share_exactly_on_average():
    new = np.arange(20) >= 10  # 10 new, 10 kept of 25 seen: 7 * 10 / 35 = 2 of the new ones
    assert (new_counts("approximate_uniform", 7, new, seen=25, repeats=50) == 2).all()
    counts = new_counts("approximate_uniform", 7, new, seen=30)  # 7 * 10 / 40 = 1.75
    assert set(counts) == {1, 2}
    assert abs(counts.mean() - 1.75) < 4 * np.sqrt(0.25 * 0.75 / 3000)


def test_fixed_proportion_takes_its_share_exactly_on_average():
    new = np.arange(20) >= 10
    counts = new_counts("fixed_proportion", 5, new)
    assert set(counts) == {2, 3}
    assert abs(counts.mean() - 2.5) < 4 * np.sqrt(0.25 / 3000)
    assert (new_counts("fixed_proportion", 5, new, repeats=50, proportion=0.2) == 1).all()


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 24), st.integers(0, 50), st.integers(0, 1000))
def test_a_short_part_is_filled_from_the_other(old, fresh, budget, more_seen, seed):
    new = np.arange(old + fresh) >= old
    seen = {"seen": old + more_seen}
    for method, extra in (("fixed_proportion", {}), ("approximate_uniform", seen), ("balanced", seen)):
        if old + fresh:
            kept = coreplay.select(np.eye(old + fresh), budget=budget, method=method, new=new, seed=seed, **extra)
            assert len(kept) == min(budget, old + fresh)


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(1, 8),
    st.integers(0, 20),
    st.integers(0, 99),
)
def test_balanced_keeps_the_numbers_of_approximate_uniform_and_is_near_the_best_that_does(
    kind, old, fresh, budget, more_seen, seed
):
    n = old + fresh
    budget = min(budget, n)
    K, new = gram(kind, n, seed), np.arange(n) >= old
    history = {"new": new, "seen": old + more_seen, "seed": seed}
    kept = coreplay.select(gram=K, budget=budget, method="balanced", **history)
    share = budget * fresh / (n + more_seen)
    assert new[kept].sum() in {min(max(int(share) + k, budget - old), fresh) for k in (0, share > int(share))}
    allowed = [s for s in combinations(range(n), budget) if new[list(s)].sum() == new[kept].sum()]
    best = min(coreplay.objective(gram=K, kept=s) for s in allowed)
    chance = np.mean([coreplay.objective(gram=K, kept=s) for s in allowed])
    found = coreplay.objective(gram=K, kept=kept)
    assert best - 1e-9 <= found <= chance + 1e-9


def test_balanced_is_the_best_of_its_kind_on_average():
    """Over seeds, within 2 % of what enumeration finds."""
    totals = Counter()
    for seed in range(20):
        K, new = gram("clustered", 14, seed), np.arange(14) >= 7
        kept = coreplay.select(gram=K, budget=5, method="balanced", new=new, seen=18, seed=seed)
        allowed = [s for s in combinations(range(14), 5) if new[list(s)].sum() == new[kept].sum()]
        totals["best"] += min(coreplay.objective(gram=K, kept=s) for s in allowed)
        totals["balanced"] += coreplay.objective(gram=K, kept=kept)
    assert totals["balanced"] <= 1.02 * totals["best"]


def test_herding_follows_the_mean():
    features = np.random.default_rng(5).normal(size=(20, 4)) + 1
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = []
    for k in range(1, 7):
        rest = [j for j in range(20) if j not in expected]
        expected.append(
            min(rest, key=lambda j: np.linalg.norm(unit.mean(axis=0) - unit[[*expected, j]].sum(axis=0) / k))
        )
    assert coreplay.select(features, budget=6, method="herding").tolist() == sorted(expected)
    other = np.random.default_rng(6).normal(size=(20, 9))

    def herded(rows, features):
        return coreplay.select(rows, budget=6, method="herding", columns={"features": features}).tolist()

    assert herded(other, features) == sorted(expected)
    assert herded(other, lambda: features) == sorted(expected)
    assert herded(features, lambda: None) == sorted(expected)
    coreplay.select(other, budget=6, columns={"features": lambda: pytest.fail("polished needs no features")})


def test_iqp_with_enough_nodes_is_optimal():
    for seed in range(10):
        K = gram("clustered", 11, seed)
        kept = coreplay.select(gram=K, budget=4, method="gss_iqp", nodes=100_000)
        assert coreplay.objective(gram=K, kept=kept) == pytest.approx(best_by_enumeration(K, 4), rel=1e-3)


def test_greedy_never_replaces_among_similar_gradients():
    """With all cosines positive nothing may enter a full buffer, so it holds the first of the stream: uniform ones."""
    rows = np.abs(np.random.default_rng(0).normal(size=(30, 5)))
    picks = [tuple(coreplay.select(rows, budget=4, method="gss_greedy", seed=s)) for s in range(200)]
    assert len(set(picks)) > 150


def test_greedy_replaces_when_the_new_gradient_is_opposed():
    rows = np.vstack([np.tile([1.0, 0.0], (9, 1)), [[-1.0, 0.0]]])
    hits = [9 in coreplay.select(rows, budget=3, method="gss_greedy", seed=s) for s in range(100)]
    assert np.mean(hits) > 0.9  # by chance it would be 0.3


def test_clustering_keeps_one_of_each_cluster():
    rng = np.random.default_rng(0)
    centres = np.eye(4)
    labels = np.repeat(np.arange(4), [30, 6, 2, 2])
    rows = centres[labels] + 0.02 * rng.normal(size=(40, 4))
    for seed in range(20):
        kept = coreplay.select(rows, budget=4, method="gss_clustering", seed=seed)
        assert sorted(labels[kept]) == [0, 1, 2, 3]


def test_exact_tells_its_proof():
    selection = select_from(make_pool(gram=gram("generic", 20, 0)), budget=5, method="exact")
    assert selection.details["proved"] is True
    assert selection.details["gap"] == 0
    assert selection.details["objective"] == pytest.approx(selection.details["bound"])
    hurried = select_from(make_pool(gram=gram("generic", 80, 0)), budget=20, method="exact", time_limit=0.01)
    assert hurried.details["proved"] is False
    assert 0 < hurried.details["gap"] <= 1


def test_a_selector_of_ones_own_is_one_function():
    from coreplay.selection import Pool, selector

    @selector("shortest_rows_for_test")
    def shortest(pool: Pool, budget, rng, *, reverse=False):
        """Keep the first samples."""
        return np.arange(pool.size)[::-1][:budget] if reverse else np.arange(budget)

    assert coreplay.selectors()["shortest_rows_for_test"] == "Keep the first samples."
    assert coreplay.select(np.eye(4), budget=2, method="shortest_rows_for_test").tolist() == [0, 1]
    assert coreplay.select(np.eye(4), budget=2, method="shortest_rows_for_test", reverse=True).tolist() == [2, 3]
