"""Corrective: its small exact programme, what it promises about the sums, and that it beats alternating."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay import coordinate
from coreplay.coordination import Broadcast, Candidates, Client, Server
from coreplay.coordination.method import make_method
from coreplay.coordination.methods import corrective
from coreplay.coordination.methods.corrective import least_mixture
from coreplay.experiments.coordination_study import CoordinationStudy, draw_clients, joint_bound
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


def test_four_rounds_beat_eight_of_the_paper_and_sixteen_come_near_the_bound():
    clients = draw_clients(CoordinationStudy(clients=100))
    lower, upper = joint_bound(clients, 5, tolerance=1e-3)
    assert upper <= lower * (1 + 1.1e-3)
    ours = [coordinate(clients, 5, rounds=rounds).objective for rounds in (1, 4, 16)]
    papers = [coordinate(clients, 5, "alternating", rounds=rounds).objective for rounds in (1, 8)]
    assert ours[0] < papers[0]
    assert ours[1] < papers[1]
    assert lower <= ours[2] < 1.03 * lower
    assert ours[1] < 1.3 * lower


def test_with_a_thousand_clients_one_round_beats_four_of_the_paper_and_four_its_sixteen():
    clients = draw_clients(CoordinationStudy(clients=1000))
    for ours, papers in ((1, 4), (4, 16)):
        theirs = coordinate(clients, 5, "alternating", rounds=papers).objective
        assert coordinate(clients, 5, rounds=ours).objective < 0.95 * theirs


@pytest.mark.parametrize("seed", range(3))
def test_clients_that_all_can_turn_the_same_way_do_not_overshoot(seed):
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(3, 400)) / 20
    clients = [rng.normal(0.3, 0.7, size=(19, 3)) @ shared + rng.normal(size=(19, 400)) / 20 for _ in range(75)]
    alone = coordinate(clients, 5, rounds=0).objective
    assert coordinate(clients, 5, rounds=1).objective < 0.8 * alone
    after_four, after_sixteen = (coordinate(clients, 5, rounds=rounds).objective for rounds in (4, 16))
    assert after_four < 0.8 * alone
    assert after_sixteen < 0.5 * after_four


def test_kappa_falls_after_a_good_round_and_rises_after_one_that_overshot():
    method = make_method("corrective")
    first = method.server_step([np.float32([3, 0])], 85, None)
    assert first.numbers == {"kappa": 8.5}
    said = Broadcast("r", 0, 0, False, 85, first.vector, {}, first.weights, first.numbers)
    shorter = method.server_step([np.float32([3, 0]), np.float32([2, 1])], 85, said)
    longer = method.server_step([np.float32([3, 0]), np.float32([-4, 0])], 85, said)
    assert shorter.numbers["kappa"] == pytest.approx(8.5 * 0.75)
    assert longer.numbers["kappa"] == pytest.approx(8.5 / 0.75)
    joined = method.server_step([np.float32([3, 0]), np.float32([2, 1])], 210, said)
    assert joined.numbers["kappa"] == pytest.approx(14 * 0.75), "more clients, more caution"


def test_kappa_stays_within_limits(monkeypatch):
    monkeypatch.setattr(corrective, "FALL", 0.01)
    method, sums, said = make_method("corrective"), [np.float32([1, 0])], None
    for round in range(200):
        told = method.server_step(sums, 85, said)
        assert 1 <= told.numbers["kappa"] <= 85
        said = Broadcast("r", 0, round, False, 85, told.vector, {}, told.weights, told.numbers)
        sums = [*sums, sums[-1] * np.float32(-1.2)]


def test_who_gains_more_than_a_share_takes_it_as_often_as_makes_it_the_share():
    pool = Candidates(np.array([[1.0, 0.0], [-1.0, 0.0]]), 1)
    method, past = make_method("corrective"), np.array([[1.0, 0.0]])
    broadcast = Broadcast("r", 0, 0, False, 20, np.float32([10, 0]), {}, (1.0,), {"kappa": 1.0})
    replies = [method.answer(pool, broadcast, past, np.random.default_rng(seed)) for seed in range(2000)]
    moved = np.mean([reply[1] for reply in replies])  # which gains 20, and the share is 5
    assert moved == pytest.approx(1 / 4, abs=4 * np.sqrt(3 / 16 / 2000))
    newcomer = np.zeros((1, 2))
    assert all(method.answer(pool, broadcast, newcomer, np.random.default_rng(seed))[1] == 1 for seed in range(100)), (
        "who has no earlier answer replies with this one"
    )
