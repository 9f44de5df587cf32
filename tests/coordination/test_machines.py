"""Both halves under a bad network: messages lost, repeated, late and out of order."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay.coordination import Broadcast, Client, Server
from coreplay.coordination.messages import NEVER
from coreplay.errors import InputError

NAMES = "abcd"
ROUNDS = 4
BUDGETS = {"a": 3, "b": 2, "c": 3, "d": 1}


def pools(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(8, 6)) + 0.4 for name in NAMES}


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def machines(method, seed=0):
    clients = {name: Client(name, rows, BUDGETS[name], run="r", method=method) for name, rows in pools(seed).items()}
    return clients, Server(BUDGETS, 6, ROUNDS, run="r", method=method)


links = st.lists(
    st.fixed_dictionaries(
        {
            "heard": st.sets(st.sampled_from(NAMES)),  # who gets this round's broadcast
            "lost": st.sets(st.sampled_from(NAMES)),  # whose contribution never arrives
            "late": st.sets(st.sampled_from(NAMES)),  # whose contribution arrives after the round is closed
            "twice": st.sets(st.sampled_from(NAMES)),  # whose contribution arrives twice
            "again": st.sets(st.sampled_from(NAMES)),  # who gets the broadcast before last once more
            "order": st.permutations(NAMES),
        }
    ),
    min_size=ROUNDS,
    max_size=ROUNDS,
)


def play(method, network, *, disturb=True):
    """Run a whole period over a network; return both halves, the broadcasts and each client's counted vectors."""
    clients, server = machines(method)
    words, delayed = [], []
    counted = dict.fromkeys(NAMES)
    for k, link in enumerate(network):
        order = link["order"] if disturb else NAMES
        if disturb:
            for data in delayed:
                assert not server.receive(data).counted
        delayed = []
        for name in order:
            client = clients[name]
            if k and disturb and name in link["again"] and len(words) > 1:
                client.step(words[-2])
            if k and name not in link["heard"]:
                continue
            answer = client.begin() if k == 0 else client.step(words[-1])
            if name in link["lost"]:
                continue
            if name in link["late"]:
                delayed.append(answer.to_bytes())
                continue
            assert server.receive(answer.to_bytes()).counted
            counted[name] = client._answers[k]
            if disturb and name in link["twice"]:
                assert server.receive(answer.to_bytes()).reason.startswith("repeated")
        if all(x is None for x in counted.values()):
            with pytest.raises(InputError, match="no client has answered"):
                server.broadcast()
            return None
        words.append(Broadcast.from_bytes(server.broadcast().to_bytes()))
        expected = sum(x @ unit(pools()[name]) for name, x in counted.items() if x is not None)
        np.testing.assert_allclose(server._sums[-1], expected, atol=1e-5)
        assert words[-1].clients == sum(x is not None for x in counted.values())
    assert server.done
    assert not server.refusals
    return clients, server, words


@pytest.mark.parametrize("method", ["alternating", "corrective"])
@given(network=links)
@settings(max_examples=40, deadline=None)
def test_the_sum_holds_the_last_counted_answer_of_each_and_disturbances_change_nothing(method, network):
    played = play(method, network)
    if played is None:
        return
    clients, _, words = played
    for name, client in clients.items():
        kept = client.finish(words[-1])
        assert len(set(kept.tolist())) == BUDGETS[name]
        np.testing.assert_array_equal(kept, client.finish(words[-1]))
        assert len(client.finish()) == BUDGETS[name]
    calm = play(method, network, disturb=False)
    assert [word.to_bytes() for word in words] == [word.to_bytes() for word in calm[2]]
    for name in NAMES:
        np.testing.assert_array_equal(clients[name].finish(words[-1]), calm[0][name].finish(words[-1]))


@given(network=links)
@settings(max_examples=30, deadline=None)
def test_sums_of_all_rounds_hold_a_share_of_everyone_who_ever_answered(network):
    played = play("corrective", network)
    if played is None:
        return
    clients, server, words = played
    for name, client in clients.items():
        client._heed(words[-1])
        assert bool(client._counted) == (words[-1].behind.get(name, ROUNDS - 1) != NEVER)
    for k in range(ROUNDS):
        total = sum(client._past(ROUNDS - 1)[k] @ unit(pools()[name]) for name, client in clients.items())
        np.testing.assert_allclose(server._sums[k], total, atol=1e-5)


def test_a_client_may_live_in_a_fresh_process_each_time():
    clients, server = machines("corrective")
    for client in clients.values():
        assert server.receive(client.begin()).counted
    word, states = server.broadcast(), {name: client.state() for name, client in clients.items()}
    for _ in range(1, ROUNDS):
        revived, _ = machines("corrective")
        for name, client in revived.items():
            client.restore(states[name])
            answer = client.step(word)
            assert answer.to_bytes() == clients[name].step(word).to_bytes()
            assert server.receive(answer).counted
        states = {name: client.state() for name, client in revived.items()}
        word = server.broadcast()
    assert server.done


def test_lost_state_is_noticed_and_wrong_state_refused():
    clients, server = machines("corrective")
    for client in clients.values():
        server.receive(client.begin())
    word = server.broadcast()
    fresh, _ = machines("corrective")
    with pytest.raises(InputError, match="was its state lost"):
        fresh["a"].step(word)
    assert len(fresh["a"].finish()) == BUDGETS["a"]
    with pytest.raises(InputError, match="state is not one of client 'b'"):
        fresh["b"].restore(clients["a"].state())
    with pytest.raises(InputError):
        fresh["a"].restore(clients["a"].state()[:-8])


def test_repeated_begin_and_step_give_the_same_bytes():
    clients, server = machines("alternating")
    assert clients["a"].begin().to_bytes() == clients["a"].begin().to_bytes()
    server.receive(clients["a"].begin())
    word = server.broadcast()
    assert clients["a"].step(word).to_bytes() == clients["a"].step(word).to_bytes()
    with pytest.raises(InputError, match="client 'a' is in run 'r'"):
        clients["a"].step(Broadcast("other", 0, 0, False, 1, word.vector))


def test_final_broadcast_is_the_same_again_and_gets_no_answer():
    clients, server = machines("alternating")
    word = None
    for _ in range(ROUNDS):
        for client in clients.values():
            answer = client.begin() if word is None else client.step(word)
            server.receive(answer)
        word = server.broadcast()
    assert server.done
    assert server.broadcast().to_bytes() == word.to_bytes()
    assert clients["a"].step(word) is None
    assert server.receive(answer).reason.startswith("late")


def test_random_numbers_of_a_round_do_not_depend_on_earlier_ones():
    clients, _ = machines("corrective")
    first = {k: clients["a"]._rng(k).random(5).tolist() for k in (0, 1, 2)}
    again = {k: machines("corrective")[0]["a"]._rng(k).random(5).tolist() for k in (2, 1)}
    assert clients["a"]._rng(1).random(5).tolist() == first[1] == again[1]
    assert first[2] == again[2]
    other = clients["b"]._rng(1).random(5).tolist()
    assert len({str(numbers) for numbers in (*first.values(), other)}) == 4


@pytest.mark.parametrize("call", ["step", "finish"])
def test_a_client_checks_the_length_of_a_broadcast(call):
    clients, server = machines("corrective")
    for client in clients.values():
        server.receive(client.begin())
    sent = server.broadcast()
    wrong = dataclasses.replace(sent, vector=sent.vector[:1])
    with pytest.raises(InputError, match="broadcast has 1 numbers: the gradients of client 'a' have 6"):
        getattr(clients["a"], call)(wrong)
    assert getattr(clients["a"], call)(sent) is not None
