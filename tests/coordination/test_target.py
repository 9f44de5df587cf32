"""Target "mean": the sum of what all clients keep comes near that of all pools, through the same sums."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from coreplay import coordinate
from coreplay.coordination import Client, Contribution, Server
from coreplay.errors import InputError

METHODS = ("alternating", "corrective")


def distance(clients, selections, budget, weights=None):
    """Return ‖Σ kept − Σ_m (N_m / Σ a) G_m a‖²."""
    residual = np.zeros(clients[0].shape[1])
    for m, (rows, kept) in enumerate(zip(clients, selections, strict=True)):
        a = np.ones(len(rows)) if weights is None else weights[m]
        residual += rows[list(kept)].sum(axis=0) - budget / a.sum() * (a @ rows)
    return float(residual @ residual)


@pytest.mark.parametrize("seed", range(4))
def test_two_clients_come_near_the_best_of_all_selections(seed, reference):
    clients = reference.draw(seed, clients=2, pool=6, dimension=4)
    every = [distance(clients, pair, 2) for pair in product(combinations(range(6), 2), repeat=2)]
    found = coordinate(clients, 2, rounds=8, target="mean")
    assert found.objective == pytest.approx(distance(clients, found.selections, 2), abs=1e-5)
    assert min(every) - 1e-6 <= found.objective <= np.quantile(every, 0.1) + 1e-6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_objective_and_history_are_squared_distances_to_the_target(method, rounds, reference):
    clients = reference.draw(0, clients=6, pool=10)
    weights = [np.random.default_rng(m).random(10) + 0.1 for m in range(6)]
    for columns, given in ((None, None), ([{"weight": a} for a in weights], weights)):
        found = coordinate(clients, 3, method, rounds, target="mean", columns=columns)
        assert found.objective == pytest.approx(distance(clients, found.selections, 3, given), rel=1e-4, abs=1e-6)
    if rounds and method == "corrective":
        alone = coordinate(clients, 3, method, 0, target="mean", columns=columns)
        assert found.history[0].integer == pytest.approx(alone.objective, rel=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_alternating_reaches_the_relaxed_optimum(seed, reference):
    clients = reference.draw(seed, clients=3, pool=6, dimension=8)
    weights = [np.array([9.0, 1, 1, 1, 1, 1])] * 3  # so that the target is not in the clients' own reach
    target = sum(2 / a.sum() * (a @ rows) for a, rows in zip(weights, clients, strict=True))
    stacked = np.concatenate(clients)
    x = reference.solve(2 * stacked @ stacked.T, -2 * stacked @ target, np.kron(np.eye(3), np.ones(6)), [2] * 3, 18)
    columns = [{"weight": a} for a in weights]
    found = coordinate(clients, 2, "alternating", 300, target="mean", columns=columns)
    relaxed = [closed.relaxed for closed in found.history]
    assert relaxed[-1] == pytest.approx(np.sum((x @ stacked - target) ** 2), rel=1e-2, abs=1e-4)
    assert all(after <= before * (1 + 1e-5) + 1e-6 for before, after in pairwise(relaxed))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("quota", ["none", "class"])
def test_secure_and_open_sums_give_the_same_selections(method, quota, reference):
    clients = reference.draw(5, clients=5, pool=12)
    given = {"target": "mean", "quota": quota, "columns": [{"label": np.arange(12) % 2}] * 5}
    plain, hidden = (coordinate(clients, 4, method, 3, secure=secure, **given) for secure in (False, True))
    assert [k.tolist() for k in plain.selections] == [k.tolist() for k in hidden.selections]
    assert plain.refused == hidden.refused == []


def test_rounds_help_and_beat_random_choices(reference):
    clients = reference.draw(0, clients=40, pool=20, dimension=20)
    rng = np.random.default_rng(0)
    random = [distance(clients, [rng.choice(20, 4, replace=False) for _ in clients], 4) for _ in range(20)]
    found = [coordinate(clients, 4, rounds=rounds, target="mean").objective for rounds in (0, 8)]
    assert found[1] < found[0] < np.mean(random)


def test_a_first_contribution_may_be_twice_as_long_with_a_target_only(reference):
    long = Contribution("r", 0, 0, "a", -1, np.float32([0, 3.9]))
    for target, counted in (("zero", False), ("mean", True)):
        for method in METHODS:
            assert Server({"a": 2}, 2, 1, run="r", method=method, target=target).receive(long).counted is counted
    longer = Contribution("r", 0, 0, "a", -1, np.float32([0, 4.1]))
    receipt = Server({"a": 2}, 2, 1, run="r", target="mean").receive(longer)
    assert "has norm 4.1: at most 4 is possible" in receipt.reason


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_joins_late_brings_its_part_of_the_target(method, reference):
    rows = dict(zip("abc", reference.draw(2, clients=3, pool=9), strict=True))
    options = {"run": "r", "method": method, "target": "mean"}
    clients = {name: Client(name, given, 3, **options) for name, given in rows.items()}
    server = Server(dict.fromkeys("abc", 3), 6, 3, **options)
    for name in "ab":
        assert server.receive(clients[name].begin()).counted
    broadcast = server.broadcast()
    for client in clients.values():
        assert server.receive(client.step(broadcast)).counted
    server.broadcast()
    answers = [client._answers[1] - 3 / 9 for client in clients.values()]
    expected = sum(x @ given for x, given in zip(answers, rows.values(), strict=True))
    np.testing.assert_allclose(server._sums[-1], expected, atol=1e-5)


def test_pools_that_are_kept_whole_are_at_the_target():
    assert coordinate([np.eye(3), np.eye(3)[:2]], 3, target="mean").objective == pytest.approx(0, abs=1e-12)


def test_wrong_values_are_named():
    for method in METHODS:
        with pytest.raises(InputError, match="target must be one of zero, mean: got 'median'"):
            coordinate([np.eye(3)], 1, method, target="median")
    with pytest.raises(InputError, match="rounding must be one of top, sampling, exchange: got 'up'"):
        coordinate([np.eye(3)], 1, "alternating", rounding="up")
    for weight in (np.zeros(3), [1, -1, 1], [1, np.nan, 1]):
        with pytest.raises(InputError, match=r"clients\[0\]: column 'weight' must be finite, at least 0"):
            coordinate([np.eye(3)], 1, target="mean", columns=[{"weight": np.array(weight)}])
