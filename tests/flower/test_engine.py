"""Whole runs with hostile clients: Flower's grid and the real server and client code, in one process."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message

from coreplay.coordination import Contribution
from coreplay.coordination.secure.protocol import Reveal
from coreplay.flower.app import handle
from coreplay.flower.engine import FlowerEngine, carry_out
from coreplay.flower.messages import from_record, to_record
from coreplay.runtime import Config, RunFolder, prepare, run
from coreplay.runtime.requests import CHANGE, Failed, Joined, KeptReply
from tests.flower.common import digits, lines
from tests.flower.nodes import Nodes
from tests.test_golden import CASES, check, record

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
        changed = change(from_record(reply.content))
        return reply if changed is None else Message(to_record(changed), reply_to=message)

    return answer


def settings(clients=CLIENTS, **changes):
    given = {"stream__options": {"num_clients": clients, "num_periods": 2}, "federated__rounds": 1, "replay__budget": 3}
    return digits(**given | {"engine__min_clients": clients, "engine__timeout": 60} | changes)


def carried_out(nodes, tmp_path, config, changes, observer=None):
    """Carry out a run in which some clients are hostile; return it, and what was warned of."""
    assets, events = prepare(config), []
    for client in assets.stream.clients:
        nodes.add("state", hostile(changes[client]) if client in changes else handle, **{"client-id": client})

    def observe(event):
        events.append(event)
        if observer is not None:
            observer(event)

    done = carry_out(nodes.grid, config, tmp_path / "run", prepared=assets, observer=observe)
    return done, [event.facts["text"] for event in events if event.kind == "warning"]


def short(reply):
    if reply.to == "contribute" and reply.data:
        found = Contribution.from_bytes(reply.data)
        one = Contribution(found.run, found.period, found.round, found.client, found.basis, found.vector[:1])
        return replace(reply, data=one.to_bytes())
    return None


def long(reply):
    return replace(reply, data=bytes(2**22)) if reply.to == "contribute" and reply.data else None


def one_period(reply):
    return replace(reply, train=[9], test=[9]) if reply.to == "join" else None


def huge(reply):
    if reply.to == "join":
        return replace(reply, train=[2**39] * 2)
    if reply.to == "train":
        return replace(reply, samples=2**39, arrays={CHANGE: np.full_like(reply.arrays[CHANGE], 1e-3)})
    return None


def hoarding(reply):
    return replace(reply, kept=2**38) if reply.to == "settle" else None


def failing(reply):
    if reply.to != "evaluate":
        return None
    about = {"run": reply.run, "period": reply.period, "round": reply.round, "client": reply.client, "to": reply.to}
    return Failed(**about, error="the sensor is gone")


def test_a_run_names_hostile_clients_and_goes_on_without_their_answers(nodes, tmp_path):
    """Each is hostile in its own way, also the one that is first in order; client6 and client7 are honest."""
    hostile_ones = {
        "client0": short,
        "client1": long,
        "client2": one_period,
        "client3": huge,
        "client4": hoarding,
        "client5": failing,
    }
    config = settings(8, engine__quorum=0.3)
    done, said = carried_out(nodes, tmp_path, config, hostile_ones)
    for words in (
        ("'client0' sent a contribution that does not count", "has 1 numbers: expected 64"),
        ("'client1' sent 4194", "bytes: at most 10"),
        ("'client2' can't take part: its data has 1 periods", "that of most clients has 2"),
        ("'client3' has ", "of the round's weight"),
        ("'client4' must say how many samples it keeps", "from 0 to 3"),
        ("'client5' failed: the sensor is gone",),
    ):
        assert any(all(part in text for part in words) for text in said), words
    assert sum("of the round's weight" in text for text in said) == 1
    assert not any("client6" in text or "client7" in text for text in said)
    rows = lines(tmp_path / "run", "coordination.jsonl")
    assert [row["answered"] for row in rows] == [5, 5]

    # one that states a huge number of samples does not replace the model
    counts, known = prepare(config).stream.counts("train"), [0, 1, 4, 5, 6, 7]
    for row in lines(tmp_path / "run", "rounds.jsonl"):
        stated = counts[known, row["period"]] + [0 if k == 4 or not row["period"] else 3 for k in known]
        assert row["clients"] == 7
        without = stated[2] if row["period"] else 0  # client4 trains on more than it said, and does not count
        assert row["samples"] == stated.sum() - without + 10 * np.sort([*stated, 2**39])[3]

    # one whose test sets are missing is in all records
    rows = lines(tmp_path / "run", "metrics.jsonl")
    assert [row["missing"] for row in rows] == [["client5"]] * 4
    tested = prepare(config).stream.counts("test")[[0, 1, 3, 4, 6, 7]]
    assert [row["weight"] for row in rows[:2]] == tested.sum(axis=0).tolist()
    assert done.summary["missing"] == {"0": ["client5"], "1": ["client5"]}
    assert done.metrics["forgetting"][1] is not None, "the same client is missing from both"


def test_a_client_that_joins_with_impossible_counts_is_refused(nodes, tmp_path):
    config = settings(periods=2)
    engine = FlowerEngine(nodes.grid, config, tmp_path / "run", prepare(config).task)
    assert engine.register("ann", Joined(train=[5, 5], test=[1, 1])) == ""
    for reply, words in (
        (Joined(train=[9], test=[9]), "its data has 1 periods, the configuration says 2"),
        (Joined(train=[9, 9], test=[9]), "must be non-negative integers, one per period"),
        (Joined(train=[-1, 9], test=[9, 9]), "must be non-negative integers, one per period"),
        (Joined(), "must be non-negative integers, one per period"),
        (Joined(train=[9, 9], test=[9, 9], kept=2**38), "it says it keeps 274877906944 samples: at most 0"),
        (KeptReply(), "another kind"),
    ):
        assert words in engine.register("bo", reply)


def test_a_client_whose_buffer_is_gone_does_not_go_on_with_an_empty_one(nodes, tmp_path):
    for k in range(CLIENTS):
        nodes.add(f"state{k}", **{"client-id": f"client{k}"})
    config, events = settings(engine__min_clients=CLIENTS - 1), []
    assets = prepare(config)

    def stop(event):
        if event.kind == "round" and event.period == 1:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        carry_out(nodes.grid, config, tmp_path / "run", prepared=assets, observer=stop, clients=CLIENTS)
    (store,) = (tmp_path / "state0").glob("*/*/buffers.sqlite")
    for path in store.parent.glob("buffers.sqlite*"):
        path.unlink()
    carry_out(nodes.grid, config, tmp_path / "run", resume=True, prepared=assets, observer=events.append)
    said = [event.facts["text"] for event in events if event.kind == "warning"]
    assert any("'client0' can't take part: its buffer after period 1 is gone: restore" in text for text in said)
    assert {row["clients"] for row in lines(tmp_path / "run", "rounds.jsonl")} == {CLIENTS}
    assert lines(tmp_path / "run", "rounds.jsonl")[-1]["missing"].keys() == {"client0"}


def test_a_capped_run_with_herding_is_the_same_on_flower_and_on_the_serial_engine(nodes, tmp_path, monkeypatch):
    """Also if a client is started again between two periods: it has what it chose after the first."""

    def restart(event):
        if event.kind == "selected":
            nodes.remove(next(iter(nodes.configs)))
            nodes.add("state", **{"client-id": "client0"})

    changes = {"replay__strategy": "herding", "federated__max_weight_ratio": 1.0}
    run(settings(engine__name="serial", **changes), tmp_path / "local")
    run(settings(engine__name="serial", replay__strategy="herding"), tmp_path / "uncapped")
    with monkeypatch.context() as patch:  # the nodes are threads of this process
        patch.setattr("coreplay.runtime.client.gradient_matrix", lambda *_, **__: pytest.fail("features are enough"))
        carried_out(nodes, tmp_path, settings(**changes), {}, restart)
    assert lines(tmp_path / "run", "rounds.jsonl") == lines(tmp_path / "local", "rounds.jsonl")
    assert lines(tmp_path / "local", "rounds.jsonl") != lines(tmp_path / "uncapped", "rounds.jsonl")


def test_scaffold_gives_the_same_bits_on_flower_and_on_the_serial_engine(nodes, tmp_path):
    """Vectors beside the model, and the state of clients, also of one that is started again."""

    def restart(event):
        if (event.kind, event.period, event.round) == ("round", 1, 0):
            nodes.remove(next(iter(nodes.configs)))
            nodes.add("state", **{"client-id": "client0"})

    changes = {"replay__strategy": "none", "federated__algorithm": "scaffold", "federated__rounds": 2}
    changes["federated__clients_per_round"] = 3
    run(settings(engine__name="serial", **changes), tmp_path / "local")
    carried_out(nodes, tmp_path, settings(**changes), {}, restart)
    one, two = (RunFolder.open(tmp_path / name).checkpoint() for name in ("run", "local"))
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_array_equal(one.state["scaffold.control"], two.state["scaffold.control"])
    assert one.state["scaffold.control"].any()


def test_methods_together_give_the_same_bits_on_flower_and_on_the_serial_engine(nodes, tmp_path):
    """SCAFFOLD, distillation, EWC, FedCurv, stored outputs and quotas: states, sums of a period and stored columns."""
    changes = {"federated__algorithm": "scaffold", "replay__strategy": "polished", "replay__quota": "period"}
    changes["continual__methods"] = ["distillation", "ewc", "fedcurv", "der_pp"]
    changes["continual__options"] = {"ewc": {"max_samples": 4}, "fedcurv": {"max_samples": 4}}
    run(settings(engine__name="serial", **changes), tmp_path / "local")
    carried_out(nodes, tmp_path, settings(**changes), {})
    one, two = (RunFolder.open(tmp_path / name).checkpoint() for name in ("run", "local"))
    np.testing.assert_array_equal(one.values, two.values)
    assert one.state.keys() == two.state.keys()
    for name, vector in one.state.items():
        np.testing.assert_array_equal(vector, two.state[name])
    assert one.state["fedcurv.precision"].any()


def test_flower_gives_the_golden_records(nodes, tmp_path):
    """That a simulation gives what the serial engine gives, with the secure sum: tests/flower/test_simulation.py."""
    given, changes = CASES["relaxation"]
    config = Config.make(given, changes | {"engine.name": "flower", "engine.min_clients": 4, "engine.timeout": 60})
    carried_out(nodes, tmp_path, config, {})
    check("relaxation", record(tmp_path / "run", (tmp_path / "state").rglob("*.sqlite")))


def no_shares(reply):
    if reply.to == "secure_step" and b'"kind":"reveal"' in reply.data:
        found = Reveal.from_bytes(reply.data)
        return replace(reply, data=Reveal(*found.stamp, found.client, {}, {}).to_bytes())
    return None


def false_commitment(reply):
    if reply.to == "secure_step" and b'"commitment":"' in reply.data:
        at = reply.data.index(b'"commitment":"') + 14
        return replace(reply, data=reply.data[:at] + b"0" * 64 + reply.data[at + 64 :])
    return None


def test_a_secure_run_goes_on_without_clients_that_do_not_keep_to_the_protocol(nodes, tmp_path):
    """The sum is done again without one whose commitment is false and one that reveals no shares."""
    hostile_ones = {"client0": false_commitment, "client1": no_shares}
    _, said = carried_out(nodes, tmp_path, settings(5, replay__secure=True), hostile_ones)
    assert any("'client0' sent shares that do not give its seed" in text for text in said)
    assert any("'client1' revealed shares of other clients" in text for text in said)
    assert [row["answered"] for row in lines(tmp_path / "run", "coordination.jsonl")] == [3, 3]
