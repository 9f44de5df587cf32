"""`coordinate`: whole runs in one process."""

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import coreplay
from coreplay import coordinate
from coreplay.coordination import (
    ArrayGradients,
    Broadcast,
    Client,
    CoordinationSpec,
    Method,
    Server,
    ServerStep,
    Session,
    coordination_method,
    coordination_methods,
    run_rounds,
)
from coreplay.coordination.method import _registry as registry
from coreplay.errors import InputError
from coreplay.registry import own

METHODS = sorted(coordination_methods())


def value(clients, selections):
    rows = [c / np.linalg.norm(c, axis=1, keepdims=True) for c in clients]
    return np.sum(sum(r[k].sum(axis=0) for r, k in zip(rows, selections, strict=True)) ** 2)


class Dropping:
    """A transport among clients in this process, some of which are missing: `missing(client, round)`."""

    def __init__(self, clients, budget, method, missing):
        made = [Client(str(k), rows, budget, run="r", method=method) for k, rows in enumerate(clients)]
        self.sessions = {client.name: Session(lambda client=client: client) for client in made}
        self.missing = missing

    def contribute(self, clients, broadcast, *, secure, attempt):
        round = 0 if broadcast is None else Broadcast.from_bytes(broadcast).round + 1
        for name in clients:
            if not self.missing(int(name), round):
                yield name, self.sessions[name].contribute("r", broadcast, secure=secure, attempt=attempt)

    def step(self, step, round, messages):
        return {name: self.sessions[name].step("r", step, round, data) for name, data in messages.items()}

    def refuse(self, client, problem):
        raise AssertionError(f"{client}: {problem}")


def dropping(clients, budget, rounds, missing, method="corrective", secure=False):
    """Coordinate with drop-outs (in round `rounds`: at the end); return the rounds and the selections."""
    transport, history = Dropping(clients, budget, method, missing), []
    spec = CoordinationSpec("r", 0, rounds, clients[0].shape[1], method, secure=secure)
    last = run_rounds(transport, spec, dict.fromkeys(transport.sessions, budget), history.append)
    message = Broadcast.from_bytes(last)
    halves = [session.client for session in transport.sessions.values()]
    return history, [half.finish(None if missing(k, rounds) else message) for k, half in enumerate(halves)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_selections_objective_and_bytes(method, rounds, reference):
    clients = reference.draw(0, clients=6, pool=10)
    budgets = [1, 2, 3, 4, 5, 9]
    found = coordinate(clients, budgets, method, rounds)
    assert [len(kept) for kept in found.selections] == budgets
    assert all((np.diff(kept) > 0).all() for kept in found.selections)
    assert found.objective == pytest.approx(value(clients, found.selections), rel=1e-5)
    assert len(found.history) == rounds
    assert found.bytes_up == sum(closed.bytes_up for closed in found.history)
    assert found.bytes_down == sum(closed.bytes_down for closed in found.history)
    for closed in found.history:
        assert closed.bytes_up > 6 * 6 * 4
        assert closed.answered == 6
        assert (closed.integer is None) == (method == "alternating")


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_run_and_scale_does_not_matter(method, reference):
    clients = reference.draw(1, clients=5, pool=12)
    first, second = (coordinate(clients, 4, method, 3, seed=7) for _ in range(2))
    scaled = coordinate([c * 2.0**k for k, c in enumerate(clients)], 4, method, 3, seed=7)
    for other in (second, scaled):
        assert [k.tolist() for k in first.selections] == [k.tolist() for k in other.selections]
        assert first.history == other.history


@pytest.mark.parametrize("method", METHODS)
def test_gradient_matrices_and_arrays_are_alike(method, reference):
    clients = reference.draw(2, clients=4, pool=12)
    arrays, matrices = coordinate(clients, 4, method, 3), coordinate([ArrayGradients(c) for c in clients], 4, method, 3)
    assert [k.tolist() for k in arrays.selections] == [k.tolist() for k in matrices.selections]


def test_small_pools_stay_out_of_the_exchange(reference):
    clients = [*reference.draw(3, clients=3, pool=12), np.eye(6)[:3], np.eye(6)[:4]]
    found = coordinate(clients, [4, 4, 4, 3, 1], minimum_pool=5)
    assert found.selections[3].tolist() == [0, 1, 2]
    assert len(found.selections[4]) == 1
    assert found.history[0].answered == 3
    alone = Client("x", np.eye(3), 3, run="r")
    assert not alone.takes_part
    with pytest.raises(InputError, match="stays out of the exchange"):
        alone.begin()
    nobody = coordinate([np.eye(3)], 3)
    assert nobody.history == []


@pytest.mark.parametrize("method", METHODS)
def test_a_zero_gradient_is_no_trouble(method):
    clients = [np.vstack([np.zeros(4), np.random.default_rng(k).normal(size=(6, 4))]) for k in range(3)]
    found = coordinate(clients, 3, method, 2)
    assert np.isfinite(found.objective)
    everything_zero = coordinate([np.zeros((5, 4))] * 2, 2, method, 2)
    assert everything_zero.objective == 0


@pytest.mark.parametrize("method", METHODS)
def test_drop_outs_cost_little(method, reference):
    clients = reference.draw(4, clients=30, pool=20, dimension=20)
    rng = np.random.default_rng(0)
    gone = rng.random((30, 7)) < 0.3
    steady = coordinate(clients, 4, method, 6)
    history, selections = dropping(clients, 4, 6, lambda client, round: gone[client, round], method=method)
    assert all(closed.answered < 30 for closed in history)
    assert value(clients, selections) <= coordinate(clients, 4, method, 0).objective
    assert value(clients, selections) <= 1.5 * steady.objective + 10


def test_a_client_that_is_reached_only_at_the_end_replies_to_the_last_broadcast(reference):
    clients = reference.draw(4, clients=4, pool=12)
    history, selections = dropping(clients, 4, 2, lambda client, round: client == 2 and round < 2)
    assert [closed.answered for closed in history] == [3, 3]
    assert [len(kept) for kept in selections] == [4] * 4


@pytest.mark.parametrize("method", METHODS)
def test_secure_and_plain_select_alike(method, reference):
    clients = reference.draw(5, clients=5, pool=12)
    plain, hidden = coordinate(clients, 4, method, 3), coordinate(clients, 4, method, 3, secure=True)
    assert [k.tolist() for k in plain.selections] == [k.tolist() for k in hidden.selections]
    for ours, theirs in zip(hidden.history, plain.history, strict=True):
        assert ours.relaxed == pytest.approx(theirs.relaxed, rel=1e-4)
        assert ours.bytes_up > theirs.bytes_up


def test_secure_with_drop_outs(reference):
    clients = reference.draw(6, clients=8, pool=12)
    history, selections = dropping(clients, 4, 3, lambda client, round: client == 2 and round < 2, secure=True)
    assert history[0].answered == 7
    assert history[2].answered == 7  # its first answer would be alone in a sum of differences
    assert len(selections[2]) == 4


def test_wrong_arguments_are_named():
    with pytest.raises(InputError, match="unknown coordination method 'corective': did you mean 'corrective'"):
        coordinate([np.eye(3)], 1, "corective")
    with pytest.raises(InputError, match="budgets must have one entry per client: got 1 for 2"):
        coordinate([np.eye(3)] * 2, [1])
    with pytest.raises(InputError, match="clients is empty"):
        coordinate([], 1)
    for one in (np.eye(3), ArrayGradients(np.eye(3))):
        with pytest.raises(InputError, match=r"clients must be a list, .* pass \[clients\]"):
            coordinate(one, 1)
    with pytest.raises(InputError, match="unknown option 'diagonal' of coordination method 'corrective'"):
        coordinate([np.eye(3)], 1, diagonal="zero")
    with pytest.raises(InputError, match="rounds must be at least 0"):
        coordinate([np.eye(3)], 1, rounds=-1)
    assert "coordinate" in dir(coreplay)


@pytest.fixture
def oldest():
    """Register a coordination method that keeps the samples that arrived first, from the column "arrived"."""

    @coordination_method("oldest")
    @dataclass(frozen=True, kw_only=True)
    class Oldest(Method):
        """Keep the oldest samples."""

        returns_selections: ClassVar[bool] = True
        needs_all_rounds: ClassVar[bool] = False

        def start(self, pool, rng):
            x = np.zeros(pool.size)
            x[np.argsort(pool.column("arrived"), kind="stable")[: pool.budget]] = 1.0
            return x

        def answer(self, pool, broadcast, past, rng):
            return self.start(pool, rng)

        def server_step(self, sums, clients, previous):
            return ServerStep(sums[-1], 0.0)

    yield Oldest
    registry._entries.pop("oldest")
    own.pop(("coordination method", "oldest"))


def test_a_method_reads_columns_of_the_pool(oldest):
    arrived = np.array([3, 0, 2, 0, 1])
    client = Client("c", np.eye(5), 2, run="r", method="oldest", columns={"arrived": lambda: arrived})
    server = Server({"c": 2}, 5, 1, run="r", method="oldest")
    assert server.receive(client.begin()).counted
    assert client.finish(server.broadcast()).tolist() == [1, 3]
    with pytest.raises(InputError, match="method 'oldest' needs the column 'arrived'"):
        Client("c", np.eye(5), 2, run="r", method="oldest").begin()


def test_a_run_gives_a_method_the_columns_of_the_pool(oldest, tmp_path):
    given = {
        "stream": {"source": "digits", "options": {"num_clients": 2, "num_periods": 3}},
        "task": {"name": "image_classification", "options": {"channels": 2}},
        "federated": {"rounds": 1},
        "replay": {"strategy": "oldest", "budget": 3, "coordination_rounds": 1},
        "gradients": {"sketch_size": 16},
        "engine": {"name": "serial"},
    }
    coreplay.run(coreplay.Config.make(given, {}), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "buffers.jsonl").read_text().splitlines()]
    assert [row["arrived"] for row in rows] == [[6, 0, 0], [6, 0, 0]]  # all that is kept came first
