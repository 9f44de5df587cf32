"""The paper's figures on matrices worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coreplay.errors import InputError
from coreplay.tasks import PeriodMatrix, forgetting, relative_change

# perplexity of models after periods 0, 1, 2 (rows) on the test sets of periods 0, 1, 2
PERPLEXITY = np.array([[10.0, 50.0, 90.0], [16.0, 20.0, 80.0], [25.0, 18.0, 40.0]])


def test_forgetting_by_hand():
    lost = forgetting(PERPLEXITY)
    assert np.isnan(lost[0]).all()
    assert lost[1].tolist() == [6.0, -30.0, -10.0]
    assert lost[2].tolist() == [15.0, -2.0, -40.0]  # 25 - min(10, 16), 18 - min(50, 20), 40 - min(90, 80)
    matrix = PeriodMatrix(np.log(PERPLEXITY), np.ones((3, 3)))
    np.testing.assert_allclose(matrix.mean_forgetting(), [np.nan, (6 - 30) / 2, (15 - 2 - 40) / 3])


def test_forgetting_of_accuracy_has_the_same_sign():
    accuracy = np.array([[0.9, 0.1], [0.7, 0.8], [0.6, 0.85]])
    np.testing.assert_allclose(forgetting(accuracy, lower_is_better=False)[1:], [[0.2, -0.7], [0.3, -0.05]])


def test_all_period_figures_by_hand():
    totals, weights = np.array([[2.0, 6.0], [3.0, 3.0]]), np.array([[2.0, 2.0], [2.0, 2.0]])
    matrix = PeriodMatrix(totals, weights)
    np.testing.assert_allclose(matrix.values, np.exp([[1.0, 3.0], [1.5, 1.5]]))
    np.testing.assert_allclose(matrix.all_period(), np.exp([2.0, 1.5]))
    uneven = PeriodMatrix(np.array([[1.0, 9.0]]), np.array([[1.0, 3.0]]))
    np.testing.assert_allclose(uneven.all_period(), np.exp([10 / 4]))  # all masked pieces alike
    np.testing.assert_allclose(uneven.period_mean(), np.exp([(1 + 3) / 2]))  # all periods alike
    right = PeriodMatrix(np.array([[8.0, 1.0]]), np.array([[10.0, 10.0]]), geometric=False, lower_is_better=False)
    np.testing.assert_allclose(right.values, [[0.8, 0.1]])
    np.testing.assert_allclose(right.all_period(), [0.45])
    np.testing.assert_allclose(right.period_mean(), [0.45])


def test_relative_change_by_hand():
    assert relative_change(180.0, 219.0) == pytest.approx(-39 / 219)
    np.testing.assert_allclose(relative_change([50.0, 150.0], 100.0), [-0.5, 0.5])


def test_empty_test_sets_do_not_count():
    matrix = PeriodMatrix(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert np.isnan(matrix.values[:, 1]).all()
    np.testing.assert_allclose(matrix.all_period(), np.exp([1.0, 2.0]))
    np.testing.assert_allclose(matrix.period_mean(), np.exp([1.0, 2.0]))
    np.testing.assert_allclose(matrix.mean_forgetting()[1], np.exp(2) - np.exp(1))


@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.floats(0, 100)))
def test_forgetting_is_the_loop(values):
    found = forgetting(values)
    for t in range(len(values)):
        for k in range(values.shape[1]):
            if t == 0:
                assert np.isnan(found[t, k])
            else:
                assert found[t, k] == values[t, k] - min(values[s, k] for s in range(t))


def test_shapes_are_checked():
    with pytest.raises(InputError, match="totals and weights must be alike"):
        PeriodMatrix(np.ones((2, 2)), np.ones((2, 3)))
