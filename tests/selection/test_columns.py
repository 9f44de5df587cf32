"""Selectors of one's own: they see the pool's columns, may return weights, and their mistakes are named."""

from typing import Annotated

import numpy as np
import pytest
from pydantic import Field

import coreplay
from coreplay import InputError
from coreplay.selection import Pool, Selection, check_method, make_pool, select_from, selector
from coreplay.selection.api import _registry

ROWS = np.random.default_rng(0).normal(size=(12, 4))
LABEL = np.array([0] * 8 + [1] * 3 + [2])


@pytest.fixture(autouse=True)
def own_selectors(monkeypatch):
    """Register the selectors of a test for that test only."""
    coreplay.selectors()
    monkeypatch.setattr(_registry, "_entries", dict(_registry._entries))
    selector("class_balanced_for_test")(class_balanced)


def class_balanced(pool: Pool, budget, rng, *, most: Annotated[int, Field(ge=1)] | None = None):
    """Keep equally many samples of every class, in turns; each stands for its share of the class."""
    label = pool.column("label")
    order = [rng.permutation(np.flatnonzero(label == name)) for name in np.unique(label)]
    turns = [index for k in range(pool.size) for part in order for index in part[k : k + 1] if k < (most or np.inf)]
    kept = np.array(turns[:budget])
    seen, chosen = np.bincount(label), np.bincount(label[kept])
    return Selection(kept, weights=(seen[label[kept]] / chosen[label[kept]]), details={"classes": len(order)})


def chosen(outcome):
    """Select two samples of four with a selector that returns `outcome`."""
    name = f"returns_for_test_{len(coreplay.selectors())}"

    @selector(name)
    def returns(pool, budget, rng):
        """Return what the test says."""
        return outcome

    return name, lambda: select_from(make_pool(np.eye(4)), budget=2, method=name)


def test_a_selector_may_balance_classes_and_weigh_what_it_keeps():
    pool = make_pool(ROWS, columns={"label": LABEL})
    found = select_from(pool, budget=6, method="class_balanced_for_test")
    assert found.indices.tolist() == sorted(found.indices.tolist())
    assert np.bincount(LABEL[found.indices]).tolist() == [3, 2, 1]
    expected = np.array([8 / 3, 3 / 2, 1.0])[LABEL[found.indices]]
    assert found.weights.tolist() == expected.tolist()  # in the order of the sorted indices
    assert found.weights.sum() == pytest.approx(len(LABEL))
    assert found.details == {"classes": 3}
    kept = coreplay.select(ROWS, budget=6, method="class_balanced_for_test", columns={"label": LABEL})
    assert kept.tolist() == found.indices.tolist()


def test_a_pool_that_is_kept_whole_has_no_weights():
    found = select_from(make_pool(ROWS, columns={"label": LABEL}), budget=12, method="class_balanced_for_test")
    assert found.indices.tolist() == list(range(12))
    assert found.weights is None


def test_a_missing_column_is_named_with_the_method():
    for columns in ({"arrived": LABEL}, {"arrived": LABEL, "label": lambda: None}):
        with pytest.raises(InputError, match=r"'class_balanced_for_test' needs the column 'label'.*known: 'arrived'"):
            coreplay.select(ROWS, budget=3, method="class_balanced_for_test", columns=columns)


def test_a_column_given_by_a_function_is_computed_once_and_only_when_it_is_read():
    calls = []

    def label():
        calls.append(1)
        return LABEL

    pool = make_pool(ROWS, columns={"label": label})
    select_from(pool, budget=3)
    assert calls == []
    select_from(pool, budget=3, method="class_balanced_for_test")
    select_from(pool, budget=4, method="class_balanced_for_test")
    assert calls == [1]
    with pytest.raises(InputError, match=r"column 'label' must have one row per sample: got shape \(3,\)"):
        make_pool(ROWS, columns={"label": lambda: [1, 2, 3]}).column("label")


def test_indices_alone_or_with_details_are_enough():
    for outcome in ([3, 1], np.array([3, 1], dtype=np.uint8), (3, 1)):
        found = chosen(outcome)[1]()
        assert (found.indices.tolist(), found.weights, found.details) == ([1, 3], None, {})
        assert found.indices.dtype == np.int64
    assert chosen(([3, 1], {"why": 7}))[1]().details == {"why": 7}
    assert chosen(Selection([3, 1], weights=[0.5, 2]))[1]().weights.tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    "outcome", [[0], [0, 0], [0, 4], [-1, 2], [0, 1, 2], [0.0, 1.0], [True, False], [[0, 1]], None, "ab", [[0], [1, 2]]]
)
def test_wrong_indices_of_a_selector_are_refused_by_its_name(outcome):
    name, run = chosen(outcome)
    with pytest.raises(InputError, match=f"selector '{name}' must return"):
        run()


@pytest.mark.parametrize("weights", [[1.0], [1.0, np.nan], [1.0, np.inf], [1.0, 0.0], [1.0, -2.0], ["a", "b"], 1.0])
def test_wrong_weights_of_a_selector_are_refused_by_its_name(weights):
    name, run = chosen(Selection([0, 1], weights=weights))
    with pytest.raises(InputError, match=f"selector '{name}' must return"):
        run()


def test_options_are_checked_without_running_the_selector():
    @selector("never_run_for_test")
    def never_run(pool, budget, rng, *, depth: Annotated[int, Field(ge=1, le=3)] = 1, mean: bool = False):
        """Fail when it is run."""
        pytest.fail("it was run")

    check_method("never_run_for_test", {"depth": 3, "mean": True})
    for options, message in (
        ({"depth": 0}, "'depth' .* got 0: must be at least 1"),
        ({"depth": 4}, "'depth' .* got 4: must be at most 3"),
        ({"depth": 1.5}, "'depth' .* got 1.5: must be a whole number"),
        ({"mean": 1}, "'mean' .* got 1: must be true or false"),
        ({"wide": 1}, "unknown option 'wide' of method 'never_run_for_test'"),
    ):
        with pytest.raises(InputError, match=message):
            check_method("never_run_for_test", options)
        with pytest.raises(InputError, match=message):
            coreplay.select(np.eye(4), budget=2, method="never_run_for_test", **options)
    with pytest.raises(InputError, match="unknown method 'never_ran_for_test'"):
        check_method("never_ran_for_test", {})
