"""Hostile clients in whole runs: Flower's grid and the real server and client code, in one process."""

import numpy as np
import pytest
from flwr.app import Message

from coreplay.coordination import Contribution
from coreplay.coordination.secure.protocol import Reveal
from coreplay.flower.app import conduct, handle
from coreplay.flower.messages import Letter
from coreplay.runtime import prepare, run
from tests.flower.common import digits, lines
from tests.flower.nodes import Nodes

CLIENTS = 4


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    yield made
    made.close()


def hostile(change):
    """Return a client app that answers honestly and then changes its answer."""

    def answer(message, context):
        reply = handle(message, context)
        found = Letter.from_record(reply.content)
        changed = change(found)
        return reply if changed is None else Message(changed.to_record(), reply_to=message)

    return answer


def altered(letter, facts=None, model=None, data=None):
    return Letter(
        *letter.stamp,
        letter.facts | (facts or {}),
        letter.model if model is None else model,
        letter.data if data is None else data,
        letter.client,
    )


def settings(**changes):
    given = {"stream__options": {"num_clients": CLIENTS, "num_periods": 2}, "federated__rounds": 1, "replay__budget": 3}
    return digits(**given | {"engine__min_clients": CLIENTS, "engine__timeout": 60} | changes)


def conducted(nodes, tmp_path, change, whose=0, **changes):
    """Carry out a run in which one client is hostile; return its rows, its events and what was warned of."""
    for k in range(CLIENTS):
        answer = hostile(change) if k == whose else handle
        nodes.add("state", answer, **{"client-id": f"client{k}"})
    events = []
    config = settings(**changes)
    things = prepare(config)
    done = conduct(nodes.grid, config, tmp_path / "run", prepared=things, observer=events.append)
    return done, [event.facts["text"] for event in events if event.kind == "warning"]


def test_a_contribution_of_another_length_is_refused_and_the_run_goes_on(nodes, tmp_path):
    """Also from the client that is first in order."""

    def short(letter):
        if letter.act == "contribute" and letter.data:
            found = Contribution.from_bytes(letter.data)
            one = Contribution(found.run, found.period, found.round, found.client, found.basis, found.vector[:1])
            return altered(letter, data=one.to_bytes())
        return None

    _, said = conducted(nodes, tmp_path, short)
    assert any("'client0' does not count" in text and "has 1 numbers: expected 64" in text for text in said)
    assert not any("client1" in text for text in said)
    assert [row["answered"] for row in lines(tmp_path / "run", "coordination.jsonl")] == [3, 3]


@pytest.mark.parametrize("periods", [None, 2])
def test_a_client_with_another_number_of_periods_is_named_and_the_others_are_not_locked_out(nodes, tmp_path, periods):
    def one(letter):
        return altered(letter, {"train": [9], "test": [9]}) if letter.act == "hello" else None

    changes = {} if periods is None else {"periods": periods, "engine__min_clients": CLIENTS - 1}
    _, said = conducted(nodes, tmp_path, one, **changes)
    wanted = "that of most clients has 2" if periods is None else "the configuration says 2"
    assert any("'client0' can't take part: its data has 1 periods" in text and wanted in text for text in said)
    assert {row["clients"] for row in lines(tmp_path / "run", "rounds.jsonl")} == {CLIENTS - 1}


def test_a_client_that_states_a_huge_number_of_samples_does_not_replace_the_model(nodes, tmp_path):
    def greedy(letter):
        if letter.act == "hello":
            return altered(letter, {"train": [2**39] * 2})
        if letter.act == "train":
            return altered(letter, {"samples": 2**39}, np.full_like(letter.vector, 1e-3))
        return None

    _, said = conducted(nodes, tmp_path, greedy)
    counts = prepare(settings()).stream.counts("train")
    for row in lines(tmp_path / "run", "rounds.jsonl"):
        known = counts[1:, row["period"]] + (3 if row["period"] else 0)
        middle = np.sort([*known, 2**39])[1]
        assert row["samples"] == known.sum() + 10 * middle
    assert sum("'client0' has 7" in text and "of the round's weight" in text for text in said) == 1


@pytest.mark.parametrize("act", ["hello", "settle"])
def test_a_client_that_keeps_more_than_it_may_is_named(nodes, tmp_path, act):
    def greedy(letter):
        return altered(letter, {"kept": 2**38}) if letter.act == act else None

    _, said = conducted(nodes, tmp_path, greedy, engine__min_clients=CLIENTS - 1)
    assert any("client0" in text and "keeps" in text for text in said)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"error": "the sensor is gone"}, "failed: the sensor is gone"),
        ({"weights": [-5.0, -5.0]}, "sent weight -5 for the"),
        ({"weights": [1e9, 1e9]}, r"sent weight 1e+09 for the"),
        ({"totals": [1.0]}, "must send 2 sums of scores and of weights"),
    ],
)
def test_a_client_whose_test_sets_are_missing_is_in_all_records(nodes, tmp_path, facts, words):
    def wrong(letter):
        return altered(letter, facts) if letter.act == "evaluate" else None

    done, said = conducted(nodes, tmp_path, wrong)
    assert any("'client0'" in text and words in text for text in said)
    rows = lines(tmp_path / "run", "metrics.jsonl")
    assert [row["missing"] for row in rows] == [["client0"]] * 4
    tested = prepare(settings()).stream.counts("test")
    assert [row["weight"] for row in rows[:2]] == tested[1:].sum(axis=0).tolist()
    assert done.summary["missing"] == {"0": ["client0"], "1": ["client0"]}
    assert done.metrics["forgetting"][1] is not None, "the same client is missing from both"


def test_a_client_whose_buffer_is_gone_does_not_go_on_with_an_empty_one(nodes, tmp_path):
    for k in range(CLIENTS):
        nodes.add(f"state{k}", **{"client-id": f"client{k}"})
    config, events = settings(engine__min_clients=CLIENTS - 1), []
    things = prepare(config)

    def stop(event):
        if event.kind == "round" and event.period == 1:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        conduct(nodes.grid, config, tmp_path / "run", prepared=things, observer=stop, clients=CLIENTS)
    (store,) = (tmp_path / "state0").glob("*/*/buffers.sqlite")
    for path in store.parent.glob("buffers.sqlite*"):
        path.unlink()
    conduct(nodes.grid, config, tmp_path / "run", resume=True, prepared=things, observer=events.append)
    said = [event.facts["text"] for event in events if event.kind == "warning"]
    assert any("'client0' can't take part: its buffer after period 1 is gone: restore" in text for text in said)
    assert {row["clients"] for row in lines(tmp_path / "run", "rounds.jsonl")} == {CLIENTS}
    assert lines(tmp_path / "run", "rounds.jsonl")[-1]["missing"].keys() == {"client0"}


def test_the_cap_is_the_same_on_flower_and_on_the_local_engine(nodes, tmp_path):
    config = settings(federated__max_weight_ratio=1.0)
    run(config, tmp_path / "local")
    uncapped = run(settings(federated__max_weight_ratio=0), tmp_path / "uncapped").folder
    conducted(nodes, tmp_path, lambda letter: None, federated__max_weight_ratio=1.0)
    assert lines(tmp_path / "run", "rounds.jsonl") == lines(tmp_path / "local", "rounds.jsonl")
    assert lines(tmp_path / "run", "coordination.jsonl") == lines(tmp_path / "local", "coordination.jsonl")
    assert lines(tmp_path / "local", "rounds.jsonl") != lines(uncapped, "rounds.jsonl")


def test_herding_uses_the_same_features_on_flower_and_on_the_local_engine(nodes, tmp_path, monkeypatch):
    run(settings(replay__strategy="herding"), tmp_path / "local")
    with monkeypatch.context() as patch:  # the nodes are threads of this process
        patch.setattr("coreplay.runtime.client.gradient_matrix", lambda *_, **__: pytest.fail("features are enough"))
        conducted(nodes, tmp_path, lambda letter: None, replay__strategy="herding")
    assert lines(tmp_path / "run", "rounds.jsonl") == lines(tmp_path / "local", "rounds.jsonl")


def test_a_letter_longer_than_it_can_be_is_refused_unread(nodes, tmp_path):
    def long(letter):
        return altered(letter, data=bytes(2**22)) if letter.act == "contribute" and letter.data else None

    _, said = conducted(nodes, tmp_path, long)
    assert any("'client0' sent 4194" in text and "bytes: at most 10" in text for text in said)


def test_a_secure_run_goes_on_without_a_client_that_sends_wrong_shares(nodes, tmp_path):
    def empty(letter):
        if letter.act == "reveal":
            found = Reveal.from_bytes(letter.data)
            return altered(letter, data=Reveal(*found.stamp, found.client, {}, {}).to_bytes())
        return None

    _, said = conducted(nodes, tmp_path, empty, replay__secure=True)
    assert any("'client0' revealed shares of other clients" in text for text in said)
    assert all(row["answered"] >= 3 for row in lines(tmp_path / "run", "coordination.jsonl"))


def test_a_secure_sum_is_done_again_without_a_client_whose_commitment_is_false(nodes, tmp_path):
    def false(letter):
        if letter.act == "share":
            mark = b'"commitment":"'
            at = letter.data.index(mark) + len(mark)
            return altered(letter, data=letter.data[:at] + b"0" * 64 + letter.data[at + 64 :])
        return None

    _, said = conducted(nodes, tmp_path, false, replay__secure=True)
    assert any("'client0' sent shares that do not give its seed" in text for text in said)
    assert [row["answered"] for row in lines(tmp_path / "run", "coordination.jsonl")] == [3, 3]
