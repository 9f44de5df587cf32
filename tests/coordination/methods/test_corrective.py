"""Corrective: its small exact programme, what it promises about the sums, and that it beats alternating."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay import coordinate
from coreplay.coordination import Client, Server
from coreplay.coordination.methods.corrective import least_mixture
from coreplay.errors import InputError
from coreplay.experiments.coordination import CoordinationStudy, draw_clients, joint_bound
from coreplay.selection import select


@given(seed=st.integers(0, 10_000), count=st.integers(1, 8), dimension=st.integers(1, 10))
@settings(max_examples=60, deadline=None)
def test_mixture_is_the_smallest_convex_combination(seed, count, dimension):
    vectors = np.random.default_rng(seed).normal(size=(count, dimension)) + 0.3
    gram = vectors @ vectors.T
    weights, value = least_mixture(gram)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    total = weights @ vectors
    assert value == pytest.approx(total @ total, abs=1e-9)
    assert (vectors @ total).min() >= total @ total - 1e-6 * max(1, gram.max())  # the optimality condition


def test_mixture_of_nothing_but_zeros():
    weights, value = least_mixture(np.zeros((2, 2)))
    assert weights.sum() == pytest.approx(1)
    assert value == 0


def test_the_server_knows_the_exact_objective_of_the_answers(reference):
    clients = reference.draw(3, clients=5, pool=9)
    machines = [Client(str(m), rows, 3, run="r") for m, rows in enumerate(clients)]
    server = Server({machine.name: 3 for machine in machines}, 6, 4, run="r")
    word = None
    for _ in range(4):
        answers = [machine.begin() if word is None else machine.step(word) for machine in machines]
        assert all(server.receive(answer).counted for answer in answers)
        kept = [machine.finish() for machine in machines]
        total = sum(rows[k].sum(axis=0) for rows, k in zip(clients, kept, strict=True))
        word = server.broadcast()
        assert server.history[-1].integer == pytest.approx(total @ total, rel=1e-4)
        assert server.history[-1].relaxed <= server.history[-1].integer * (1 + 1e-6)
        assert sum(word.weights) == pytest.approx(1)


def test_relaxed_never_increases(reference):
    found = coordinate(reference.draw(5, clients=6, pool=15), 4, rounds=8)
    relaxed = [closed.relaxed for closed in found.history]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(relaxed))


def test_zero_rounds_is_the_polished_selection(reference):
    clients = reference.draw(0, pool=12)
    found = coordinate(clients, 4, rounds=0)
    alone = [select(rows, budget=4, method="polished") for rows in clients]
    value = np.sum(sum(rows[k].sum(axis=0) for rows, k in zip(clients, alone, strict=True)) ** 2)
    assert found.objective == pytest.approx(value, rel=1e-6)


def test_four_rounds_beat_sixteen_of_the_paper_and_come_near_the_bound():
    clients = draw_clients(CoordinationStudy(clients=100))
    lower, upper = joint_bound(clients, 5, tolerance=1e-3)
    assert upper <= lower * (1 + 1.1e-3)
    ours = [coordinate(clients, 5, rounds=rounds).objective for rounds in (1, 4, 16)]
    papers = [coordinate(clients, 5, "alternating", rounds=rounds).objective for rounds in (1, 4, 16)]
    assert ours[0] < papers[0]
    assert ours[1] < papers[2]
    assert lower <= ours[2] < 1.03 * lower
    assert ours[1] < 1.16 * lower


@pytest.mark.parametrize("option", ["caution", "damping"])
def test_bad_options_are_named(option):
    with pytest.raises(InputError, match=f"{option} must be a number of at least 0"):
        coordinate([np.eye(3)], 1, **{option: -1})
