"""The paper's figures on matrices worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coreplay.errors import InputError
from coreplay.tasks import Metric, PeriodMatrix, exponential, forgetting, relative_change

# perplexity of models after periods 0, 1, 2 (rows) on the test sets of periods 0, 1, 2
PERPLEXITY = np.array([[10.0, 50.0, 90.0], [16.0, 20.0, 80.0], [25.0, 18.0, 40.0]])


LOSS = Metric("perplexity", lower_is_better=True, finish=exponential)
RIGHT = Metric("accuracy", lower_is_better=False)


def test_forgetting_by_hand():
    lost = forgetting(PERPLEXITY)
    assert np.isnan(lost[0]).all()
    assert lost[1].tolist() == [6.0, -30.0, -10.0]
    assert lost[2].tolist() == [15.0, -2.0, -40.0]  # 25 - min(10, 16), 18 - min(50, 20), 40 - min(90, 80)
    matrix = PeriodMatrix.of_sums(np.log(PERPLEXITY), np.ones((3, 3)), LOSS)
    np.testing.assert_allclose(matrix.mean_forgetting(), [np.nan, 6.0, (15 - 2) / 2])
    whole = np.exp(np.log(PERPLEXITY).mean(axis=1))
    np.testing.assert_allclose(matrix.all_period_forgetting()[1:], [whole[1] - whole[0], whole[2] - whole[:2].min()])


def test_a_period_that_is_lost_whole_is_forgotten_whole():
    accuracy = PeriodMatrix.of_sums([[93.8, 0.0], [0.0, 96.0]], np.full((2, 2), 100.0), RIGHT)
    np.testing.assert_allclose(accuracy.mean_forgetting(), [np.nan, 0.938])


def test_a_period_that_is_lost_beyond_all_measure_is_not_left_out():
    losses = [[2.0, 5.0, 5.0], [1000.0, 2.0, 5.0], [1000.0, 2.5, 2.0]]
    perplexity = Metric("perplexity", lower_is_better=True, finish=exponential)
    found = PeriodMatrix.of_sums(losses, np.ones((3, 3)), perplexity).mean_forgetting()
    assert found[1:].tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("name", ["total", "weight", "forgetting", "", None])
def test_a_metric_has_a_name_that_nothing_else_in_the_records_has(name):
    with pytest.raises(InputError, match="the name of a metric must be a text other than period, test_period, total"):
        Metric(name, lower_is_better=True)


def test_a_single_period_forgets_nothing_and_says_so():
    assert np.isnan(PeriodMatrix.of_sums([[1.0]], [[1.0]], LOSS).mean_forgetting()).all()


def test_figures_on_different_test_sets_are_not_subtracted():
    values = np.array([[0.9, 0.1], [0.5, 0.8], [0.6, 0.7], [0.4, 0.6]])
    sets = np.array([[0, 0], [1, 0], [0, 0], [1, 1]])
    lost = forgetting(values, lower_is_better=False, test_sets=sets)
    assert np.isnan(lost[1, 0])  # the first model was measured on other samples
    np.testing.assert_allclose(lost[2], [0.3, 0.1])
    np.testing.assert_allclose(lost[3, 0], 0.1)  # against the second model alone
    assert np.isnan(lost[3, 1])
    matrix = PeriodMatrix.of_sums(values, np.ones((4, 2)), RIGHT, sets)
    np.testing.assert_allclose(matrix.mean_forgetting(), [np.nan, np.nan, 0.2, 0.1])
    np.testing.assert_allclose(matrix.all_period_forgetting(), [np.nan, np.nan, -0.15, np.nan], atol=1e-12)


def test_any_metric_makes_its_figures_of_the_sums():
    root = Metric("RMSE", lower_is_better=True, finish=math.sqrt)
    matrix = PeriodMatrix.of_sums([[4.0, 9.0], [16.0, 1.0]], [[1.0, 1.0], [1.0, 3.0]], root)
    np.testing.assert_allclose(matrix.values, [[2.0, 3.0], [4.0, 3**-0.5]])
    np.testing.assert_allclose(matrix.all_period, [6.5**0.5, 4.25**0.5])
    np.testing.assert_allclose(matrix.mean_forgetting()[1], 2.0)
    with pytest.raises(TypeError, match="lower_is_better"):
        Metric("accuracy")


def test_forgetting_of_accuracy_has_the_same_sign():
    accuracy = np.array([[0.9, 0.1], [0.7, 0.8], [0.6, 0.85]])
    np.testing.assert_allclose(forgetting(accuracy, lower_is_better=False)[1:], [[0.2, -0.7], [0.3, -0.05]])


def test_all_period_figures_by_hand():
    totals, weights = np.array([[2.0, 6.0], [3.0, 3.0]]), np.array([[2.0, 2.0], [2.0, 2.0]])
    matrix = PeriodMatrix.of_sums(totals, weights, LOSS)
    np.testing.assert_allclose(matrix.values, np.exp([[1.0, 3.0], [1.5, 1.5]]))
    np.testing.assert_allclose(matrix.all_period, np.exp([2.0, 1.5]))
    uneven = PeriodMatrix.of_sums([[1.0, 9.0]], [[1.0, 3.0]], LOSS)
    np.testing.assert_allclose(uneven.all_period, np.exp([10 / 4]))  # all masked pieces alike
    np.testing.assert_allclose(uneven.period_mean, np.exp([(1 + 3) / 2]))  # all periods alike
    right = PeriodMatrix.of_sums([[8.0, 1.0]], [[10.0, 10.0]], RIGHT)
    np.testing.assert_allclose(right.values, [[0.8, 0.1]])
    np.testing.assert_allclose(right.all_period, [0.45])
    np.testing.assert_allclose(right.period_mean, [0.45])


def test_relative_change_by_hand():
    assert relative_change(180.0, 219.0) == pytest.approx(-39 / 219)
    np.testing.assert_allclose(relative_change([50.0, 150.0], 100.0), [-0.5, 0.5])


def test_empty_test_sets_do_not_count():
    matrix = PeriodMatrix.of_sums([[1.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], LOSS)
    assert np.isnan(matrix.values[:, 1]).all()
    np.testing.assert_allclose(matrix.all_period, np.exp([1.0, 2.0]))
    np.testing.assert_allclose(matrix.period_mean, np.exp([1.0, 2.0]))
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
        PeriodMatrix.of_sums(np.ones((2, 2)), np.ones((2, 3)), LOSS)
