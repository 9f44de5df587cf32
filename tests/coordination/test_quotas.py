"""Quotas in joint choices: every client keeps its numbers, and the choice inside them is a good one."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coreplay
from coreplay import coordinate
from coreplay.coordination import Client, Server, Session
from coreplay.errors import InputError
from coreplay.replay import Store

METHODS = ("alternating", "corrective")


def total(clients, selections):
    return np.sum(sum(rows[list(kept)].sum(axis=0) for rows, kept in zip(clients, selections, strict=True)) ** 2)


def every_choice(arrived):
    """Return all selections of one sample per period."""
    groups = [np.flatnonzero(arrived == period) for period in np.unique(arrived)]
    return [np.sort(choice) for choice in product(*groups)]


@pytest.mark.parametrize("seed", range(4))
def test_two_clients_come_near_the_best_of_all_feasible_selections(seed, reference):
    clients = reference.draw(seed, clients=2, pool=6, dimension=4)
    arrived = [np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 2, 0, 1, 2])]
    columns = [{"arrived": found} for found in arrived]
    feasible = [total(clients, pair) for pair in product(*(every_choice(found) for found in arrived))]
    unlimited = [total(clients, pair) for pair in product(combinations(range(6), 3), repeat=2)]
    found = coordinate(clients, 3, rounds=8, quota="period", columns=columns)
    assert min(unlimited) - 1e-6 <= min(feasible) - 1e-6 <= found.objective
    assert found.objective <= np.quantile(feasible, 0.1) + 1e-6


@pytest.mark.parametrize("seed", range(2))
def test_alternating_converges_to_the_relaxed_optimum_inside_quotas(seed, reference):
    clients, arrived = reference.draw(seed, clients=3, pool=6, dimension=8), np.array([0, 0, 0, 1, 1, 2])
    quota = np.zeros((9, 18))
    for m, period in product(range(3), range(3)):
        quota[3 * m + period, 6 * m + np.flatnonzero(arrived == period)] = 1
    stacked = np.concatenate(clients)
    x = reference.solve(2 * stacked @ stacked.T, np.zeros(18), quota, np.ones(9), 18)
    found = coordinate(clients, 3, "alternating", 200, quota="period", columns=[{"arrived": arrived}] * 3)
    assert found.history[-1].relaxed == pytest.approx(np.sum((x @ stacked) ** 2), rel=1e-2, abs=1e-3)
    relaxed = [closed.relaxed for closed in found.history]
    assert all(after <= before * (1 + 1e-5) + 1e-6 for before, after in pairwise(relaxed))


@given(
    method=st.sampled_from(METHODS),
    options=st.sampled_from([{}, {"target": "mean"}]),
    arrived=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=12), min_size=2, max_size=3),
    budget=st.integers(1, 6),
    rounds=st.integers(0, 2),
    minimum_pool=st.sampled_from([2, 8]),
)
@settings(max_examples=40, deadline=None)
def test_periods_are_kept_as_evenly_as_sizes_allow(method, options, arrived, budget, rounds, minimum_pool):
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(len(found), 5)) for found in arrived]
    columns = [{"arrived": found} for found in arrived]
    result = coordinate(
        clients, budget, method, rounds, quota="period", columns=columns, minimum_pool=minimum_pool, **options
    )
    for found, kept in zip(arrived, result.selections, strict=True):
        assert len(kept) == min(budget, len(found))
        held, offered = (np.bincount(values, minlength=4) for values in (np.array(found)[kept], found))
        open_periods = held < offered
        if open_periods.any():  # nobody has more than a period that could have had another
            assert held.max() <= held[open_periods].min() + 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rounding", ["top", "sampling", "exchange"])
def test_classes_and_every_rounding(method, rounding, reference):
    clients = reference.draw(0, clients=3, pool=12)
    options = {"rounding": rounding} if method == "alternating" else {}
    label = np.arange(12) % 3
    found = coordinate(clients, 6, method, 2, quota="class", columns=[{"label": label}] * 3, **options)
    assert all(np.bincount(label[kept]).tolist() == [2, 2, 2] for kept in found.selections)


def test_new_and_old_are_kept_in_the_numbers_of_approximate_uniform(reference):
    clients = reference.draw(0, clients=30, pool=12)
    new = [np.arange(12) < 8] * 30
    found = coordinate(clients, 6, rounds=1, quota="new_old", new=new, seen=[24] * 30)
    from_new = [int((kept < 8).sum()) for kept in found.selections]
    assert set(from_new) == {2}, "6 · 8 / (8 + 24) = 1.5, and at least 6 − 4"
    found = coordinate(clients, 4, rounds=1, quota="new_old", new=new, seen=[40] * 30)
    assert {int((kept < 8).sum()) for kept in found.selections} == {0, 1}, "4 · 8 / 48 on average"


def test_a_quota_of_one_group_changes_nothing(reference):
    clients = reference.draw(1, clients=4, pool=12)
    for method in METHODS:
        plain = coordinate(clients, 4, method, 3)
        same = coordinate(clients, 4, method, 3, quota="period", columns=[{"arrived": np.zeros(12)}] * 4)
        assert [k.tolist() for k in plain.selections] == [k.tolist() for k in same.selections]
        assert plain.history == same.history


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "alternating", "rounding": "sampling"}, {"method": "alternating", "rounding": "exchange"}],
)
def test_repeated_requests_and_new_processes_give_the_same_answers(options, reference):
    rows, arrived = reference.draw(0, clients=1, pool=13)[0], np.arange(13) % 5

    def make():
        return Client("a", rows, 7, run="r", quota="period", columns={"arrived": arrived}, **options)

    server = Server({"a": 7}, 6, 2, run="r", method=options.get("method", "corrective"))
    state, broadcast = None, None
    while not server.done:
        answers = []
        for _ in range(3):  # each time in a new process, and asked twice
            session = Session(make, state)
            answers += [session.contribute("s", broadcast).data for _ in range(2)]
        assert len(set(answers)) == 1
        state = session.state()
        assert server.receive(answers[0]).counted
        broadcast = server.broadcast().to_bytes()
    kept = [Session(make, state).finish("s", broadcast).tolist() for _ in range(3)]
    assert kept[0] == kept[1] == kept[2]
    assert sorted(np.bincount(arrived[kept[0]])) == [1, 1, 1, 2, 2]
    alone = [make().finish().tolist() for _ in range(2)]
    assert alone[0] == alone[1]
    assert np.bincount(arrived[alone[0]]).tolist() == np.bincount(arrived[kept[0]]).tolist(), "the same draw"


def test_wrong_quotas_are_named():
    clients = [np.eye(5)] * 2
    with pytest.raises(InputError, match="quota must be one of none, new_old, period, class: got 'month'"):
        coordinate(clients, 2, quota="month")
    with pytest.raises(InputError, match=r"clients\[0\]: .* needs the column 'arrived'"):
        coordinate(clients, 2, quota="period")
    with pytest.raises(InputError, match="needs to know which samples are new"):
        coordinate(clients, 2, quota="new_old")
    with pytest.raises(InputError, match="columns must be a list with one entry per client, 2 in all"):
        coordinate(clients, 2, quota="period", columns={"arrived": np.zeros(5)})
    with pytest.raises(InputError, match="seen must be a list with one entry per client"):
        coordinate(clients, 2, quota="new_old", new=[np.ones(5, bool)] * 2, seen=[1])


@pytest.mark.parametrize("strategy", METHODS)
def test_a_run_keeps_every_period_alike(strategy, tmp_path):
    given = {
        "stream": {"source": "digits", "options": {"num_clients": 3, "num_periods": 4}},
        "task": {"name": "image_classification", "options": {"channels": 2}},
        "federated": {"rounds": 1},
        "replay": {"strategy": strategy, "budget": 6, "coordination_rounds": 2, "quota": "period"},
        "gradients": {"sketch_size": 16},
        "engine": {"name": "serial"},
    }
    config = coreplay.Config.make(given, {"replay.options": {"target": "mean"}})
    coreplay.run(config, tmp_path / "run")
    with Store.open(tmp_path / "run/buffers.sqlite") as store:
        for client in store.clients():
            arrived = [item.period for item in store.load(client).items]
            assert np.bincount(arrived).tolist() == [2, 2, 2]
