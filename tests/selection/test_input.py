"""Wrong input: a clear error that names the argument, the value and the remedy; odd but right input: accepted."""

import numpy as np
import pytest

import coreplay
from coreplay import InputError
from tests.selection.problems import pool_arguments

ROWS = np.random.default_rng(0).normal(size=(6, 4))


def with_entry(array, index, value):
    out = np.array(array)
    out[index] = value
    return out


WRONG = {
    "nan": ({"gradients": with_entry(ROWS, (3, 1), np.nan)}, "gradients must be finite: row 3 has NaN"),
    "infinite": ({"gradients": with_entry(ROWS, (2, 0), np.inf)}, "gradients must be finite: row 2"),
    "one dimension": ({"gradients": np.ones(5)}, r"two dimensions, one row per sample: got shape \(5,\)"),
    "empty pool": ({"gradients": np.ones((0, 4))}, r"gradients is empty, shape \(0, 4\)"),
    "empty rows": ({"gradients": np.ones((4, 0))}, "rows of length 0"),
    "text": ({"gradients": [["a", "b"]]}, "gradients must be an array of numbers: got dtype"),
    "ragged": ({"gradients": [[1.0], [1.0, 2.0]]}, "its rows differ in length"),
    "complex": ({"gradients": np.eye(3) * 1j}, "got dtype complex128"),
    "nothing": ({}, "pass either gradients= .* or gram="),
    "both": ({"gradients": ROWS, "gram": np.eye(6)}, "and not both"),
    "gram not square": ({"gram": np.ones((3, 4))}, r"gram must be square: got shape \(3, 4\)"),
    "gram empty": ({"gram": np.ones((0, 0))}, "gram is empty"),
    "gram lopsided": (
        {"gram": with_entry(np.eye(3), (0, 1), 0.5)},
        r"symmetric: entry \(0, 1\) is 0.5 but \(1, 0\) is 0",
    ),
    "gram nan": ({"gram": with_entry(np.eye(3), (1, 2), np.nan)}, r"entry \(1, 2\) is nan"),
    "gram negative": ({"gram": -np.eye(3)}, r"squared norms: entry \(0, 0\) is -1"),
    "gram zeroed": ({"gram": 0.5 * (np.ones((3, 3)) - np.eye(3))}, "was the diagonal changed"),
    "budget zero": ({"gradients": ROWS, "budget": 0}, "budget must be at least 1: got 0"),
    "budget negative": ({"gradients": ROWS, "budget": -3}, "budget must be at least 1: got -3"),
    "budget fraction": ({"gradients": ROWS, "budget": 2.5}, "budget must be a whole number: got 2.5"),
    "budget bool": ({"gradients": ROWS, "budget": True}, "budget must be a whole number: got True"),
    "method": ({"gradients": ROWS, "method": "polishd"}, "unknown method 'polishd': did you mean 'polished'"),
    "option": ({"gradients": ROWS, "method": "exact", "time_limt": 3}, "did you mean 'time_limit'"),
    "no such option": (
        {"gradients": ROWS, "method": "herding", "x": 3},
        r"unknown option 'x' of method 'herding' \(known: none\)",
    ),
    "seed": ({"gradients": ROWS, "seed": -1}, "seed must be at least 0: got -1"),
    "time limit": (
        {"gradients": ROWS, "method": "exact", "time_limit": 0},
        "'time_limit' .* got 0.*above 0",
    ),
    "proportion": (
        {"gradients": ROWS, "method": "fixed_proportion", "new": [1] * 6, "proportion": 1},
        "'proportion' .* got 1: must be below 1",
    ),
    "growth": ({"gradients": ROWS, "method": "gss_clustering", "growth": 0}, "'growth' .* got 0: must be above 0"),
    "references": ({"gradients": ROWS, "method": "gss_greedy", "references": 0}, "'references' .* must be at least 1"),
    "moves": ({"gradients": ROWS, "moves": "abc"}, "'moves' .* got 'abc': must be a whole number"),
    "time limit text": (
        {"gradients": ROWS, "method": "exact", "time_limit": "x"},
        "'time_limit' .* got 'x': must be a number",
    ),
    "nodes": ({"gradients": ROWS, "method": "gss_iqp", "nodes": 0}, "'nodes' .* must be at least 1"),
    "new missing": (
        {"gradients": ROWS, "method": "fixed_proportion"},
        "needs to know which samples are new: pass new=",
    ),
    "seen missing": ({"gradients": ROWS, "method": "approximate_uniform", "new": [1] * 6}, "pass seen="),
    "seen small": (
        {"gradients": ROWS, "method": "approximate_uniform", "new": [0] * 6, "seen": 2},
        "seen must be at least the number of old samples in the pool, 6: got 2",
    ),
    "new length": ({"gradients": ROWS, "new": [True]}, r"one entry per sample: got shape \(1,\) for a pool of 6"),
    "new numbers": ({"gradients": ROWS, "new": np.arange(6)}, "new must hold True or False"),
    "column length": (
        {"gradients": ROWS, "columns": {"features": np.ones((2, 2))}},
        r"column 'features' must have one row per sample: got shape \(2, 2\) for a pool of 6",
    ),
    "column of one number": ({"gradients": ROWS, "columns": {"label": 3}}, r"column 'label' .* got shape \(\)"),
    "features nan": (
        {"gradients": ROWS, "method": "herding", "columns": {"features": np.full((6, 2), np.nan)}},
        "features must be finite: row 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case):
    arguments, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        coreplay.select(**({"budget": 2} | arguments))


@pytest.mark.parametrize("method", coreplay.selectors())
def test_zero_gradients_are_similar_to_nothing(method):
    rows = np.zeros((8, 3))
    rows[5] = [1, 2, 3]
    kept = coreplay.select(rows, budget=3, method=method, **pool_arguments(method, 8))
    assert len(kept) == 3
    assert coreplay.objective(rows, kept) == pytest.approx(float(5 in kept))


def test_huge_and_tiny_gradients_neither_overflow_nor_vanish():
    rows = np.array([[1e300, 0], [0, 1e-300], [-1e300, 0], [1e-300, 1e-300]])
    assert coreplay.objective(rows, [0, 2]) == pytest.approx(0)
    assert coreplay.objective(rows, [0, 3]) == pytest.approx(2 + np.sqrt(2))
    assert coreplay.select(rows, budget=2, method="exact").tolist() == [0, 2]


def test_integers_lists_and_single_precision_are_fine():
    assert coreplay.select([[1, 0], [-1, 0], [1, 1]], budget=2).tolist() == [0, 1]
    assert coreplay.select(ROWS.astype(np.float32), budget=3).tolist() == coreplay.select(ROWS, budget=3).tolist()


def test_input_is_left_as_it_was():
    rows, K = ROWS.copy(), ROWS @ ROWS.T
    before = K.copy()
    for method in ("polished", "exact", "relaxation", "herding"):
        coreplay.select(rows, budget=2, method=method)
        coreplay.select(gram=K, budget=2, method=method)
    assert (rows == ROWS).all()
    assert (before == K).all()


def test_a_gradient_matrix_is_taken_by_its_gram():
    class Matrix:
        def gram(self):
            return ROWS @ ROWS.T

        def __len__(self):
            return 6

    assert coreplay.select(Matrix(), budget=2).tolist() == coreplay.select(ROWS, budget=2).tolist()
    assert coreplay.objective(Matrix(), [0, 1]) == pytest.approx(coreplay.objective(ROWS, [0, 1]))


def test_objective_is_the_sum_of_cosines():
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    expected = sum(unit[i] @ unit[j] for i in (0, 2, 5) for j in (0, 2, 5))
    assert coreplay.objective(ROWS, [0, 2, 5]) == pytest.approx(expected)
    assert coreplay.objective(gram=ROWS @ ROWS.T, kept=[0, 2, 5]) == pytest.approx(expected)
    assert coreplay.objective(ROWS, []) == 0


@pytest.mark.parametrize("kept", [[6], [-1], [0.5], [[0, 1]], None])
def test_objective_refuses_wrong_indices(kept):
    with pytest.raises(InputError, match="kept"):
        coreplay.objective(ROWS, kept)
