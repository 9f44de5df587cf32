"""Hostile contributions: refused, named, and the run goes on without them."""

import dataclasses

import numpy as np
import pytest

from coreplay.coordination import Broadcast, Client, Contribution, Server
from coreplay.errors import InputError


@pytest.fixture
def scene():
    rng = np.random.default_rng(0)
    clients = {name: Client(name, rng.normal(size=(9, 5)) + 0.3, 3, run="r") for name in "abc"}
    return clients, Server(dict.fromkeys("abc", 3), 5, 3, run="r")


def changed(message, **fields):
    return dataclasses.replace(message, **fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"vector": np.float32([np.nan, 0, 0, 0, 0])}, "'c' has NaN or infinity"),
        ({"vector": np.float32([np.inf, 0, 0, 0, 0])}, "'c' has NaN or infinity"),
        ({"vector": np.zeros(4, np.float32)}, "'c' has 4 numbers: expected 5"),
        ({"vector": np.float32([3.1, 0, 0, 0, 0])}, r"'c' has norm 3.1: at most 3 is possible"),
        ({"basis": 0}, "'c' is the difference from its answer of round 0"),
        ({"client": "mallory"}, "client 'mallory' is not in this run"),
        ({"round": 2}, "round 2 has not begun"),
    ],
)
def test_bad_contributions_are_refused_and_named_and_the_run_goes_on(scene, fields, reason):
    clients, server = scene
    good = clients["c"].begin()
    receipt = server.receive(changed(good, **fields))
    assert receipt.refused
    assert not receipt.counted
    assert reason in receipt.reason
    assert server.refusals == [receipt]
    for name in "ab":
        assert server.receive(clients[name].begin()).counted
    word = server.broadcast()
    assert server.history[-1].refused == [receipt]
    assert word.behind == {"c": -1}
    assert word.clients == 2
    total = clients["a"].begin().vector + clients["b"].begin().vector
    np.testing.assert_allclose(word.vector, total, atol=1e-5)
    assert server.receive(clients["c"].step(word)).counted  # an honest answer of the same client is welcome


def test_a_difference_may_be_twice_as_long_and_no_longer(scene):
    clients, server = scene
    server.receive(clients["a"].begin())
    server.broadcast()
    reach = np.float32([0, 0, 0, 0, 6])
    assert server.receive(Contribution("r", 0, 1, "a", 0, 1.01 * reach)).refused
    assert server.receive(Contribution("r", 0, 1, "a", 0, reach)).counted


def test_other_runs_and_periods_are_ignored(scene):
    clients, server = scene
    good = clients["a"].begin()
    for fields in ({"run": "x"}, {"period": 1}):
        receipt = server.receive(changed(good, **fields))
        assert not receipt.counted
        assert not receipt.refused


def test_hostile_bytes_are_refused(scene):
    _, server = scene
    assert server.receive(b"garbage").refused
    assert server.refusals[0].reason


def test_sums_do_not_depend_on_the_order_and_are_not_kept_by_client(scene):
    rng = np.random.default_rng(1)
    names = [f"c{k}" for k in range(40)]
    vectors = {name: np.float32(rng.normal(size=50) / 10) for name in names}
    words = []
    for _ in range(3):
        server = Server(dict.fromkeys(names, 3), 50, 2, run="r", method="alternating")
        for name in rng.permutation(names):
            assert server.receive(Contribution("r", 0, 0, str(name), -1, vectors[str(name)])).counted
        words.append(server.broadcast().to_bytes())
        arrays = [value for value in vars(server).values() if isinstance(value, np.ndarray)]
        assert sum(array.size for array in arrays) <= 50
    assert len(set(words)) == 1


def test_arguments_are_checked():
    with pytest.raises(InputError, match="budgets is empty"):
        Server({}, 5, 1, run="r")
    server = Server({"a": 1}, 5, 2, run="r")
    with pytest.raises(InputError, match="cannot be in this sum"):
        server.receive_total(["b"], np.zeros(5, np.float32))
    with pytest.raises(InputError, match="5 finite numbers"):
        server.receive_total(["a"], np.zeros(4, np.float32))
    server = Server({"a": 1, "b": 1}, 5, 2, run="r")
    server.receive_total(["a"], np.zeros(5, np.float32))
    with pytest.raises(InputError, match="cannot be in this sum of round 0"):
        server.receive_total(["a"], np.zeros(5, np.float32))
    server.broadcast()
    with pytest.raises(InputError, match="a first answer can join in round 0 only"):
        server.receive_total(["b"], np.zeros(5, np.float32))


def test_messages_longer_than_they_can_be_are_refused_before_they_are_read(scene):
    clients, server = scene
    long = changed(clients["a"].begin(), vector=np.zeros(10**5, np.float32)).to_bytes()
    receipt = server.receive(long)
    assert receipt.refused
    assert receipt.reason == f"message has {len(long)} bytes: at most {4 * 5 + 2**14} are possible"
    server.receive(clients["a"].begin())
    sent = server.broadcast().to_bytes()
    assert Broadcast.from_bytes(sent, 5).vector.shape == (5,)
    with pytest.raises(InputError, match=r"message has .* bytes: at most"):
        Broadcast.from_bytes(sent + bytes(17 * 2**20), 5)
