"""The checked convex programme against a general solver, with linear terms of any size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay.coordination.convex import proven_minimum


@given(seed=st.integers(0, 100_000), size=st.sampled_from([0.0, 0.1, 1.0, 3.0, 30.0]))
@settings(max_examples=300, deadline=None)
def test_every_result_is_proved(seed, size):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    budget = int(rng.integers(1, n))
    rows = rng.normal(size=(n, 8)) + 0.4
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = proven_minimum(rows @ rows.T, budget, linear=size * rng.normal(size=n))
    assert found.gap <= 1e-5 * max(abs(found.value), 0.1)


@pytest.mark.parametrize("seed", [16, 19, 81, 93])
def test_value_is_that_of_a_general_solver(seed, reference):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 12))
    budget = int(rng.integers(1, n))
    rows = rng.normal(size=(n, 8)) + 0.4
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    K, c = rows @ rows.T, 3 * rng.normal(size=n)
    x = reference.one_client(K, c, budget)
    assert proven_minimum(K, budget, linear=c).value == pytest.approx(x @ K @ x + 2 * c @ x, rel=1e-5, abs=1e-6)
