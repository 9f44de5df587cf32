"""Letters and dialogues, without Flower's processes."""

import gc
import weakref

import numpy as np
import pytest
from coreplay.flower.device import Device
from coreplay.flower.dialogue import Dialogue
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from coreplay.coordination import Client, Server
from coreplay.coordination.messages import Stamp
from coreplay.coordination.secure import SecureServer
from coreplay.coordination.secure.protocol import Keys, Masked, Reveal, Shares
from coreplay.errors import InputError
from coreplay.flower.messages import Letter, is_shared
from coreplay.flower.node import Node


@given(
    st.text(max_size=20),
    st.integers(0, 10**6),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.lists(st.floats(allow_nan=False))),
    st.none() | st.lists(st.floats(width=32)).map(np.float32),
    st.binary(max_size=50),
)
def test_a_letter_arrives_as_it_was_sent(name, number, facts, vector, data):
    sent = Letter("train", name, number, 3, facts, vector, data, client=name)
    found = Letter.from_record(sent.to_record())
    assert (found.stamp, found.client, found.facts, found.data) == (sent.stamp, name, facts, data)
    assert (found.model is None) == (vector is None)
    if vector is not None:
        assert found.vector.tobytes() == vector.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"period": "one"},
        {"facts": "{"},
        {"facts": "[]"},
        {"data": "text"},
        {"extra": 1},
    ],
)
def test_what_is_no_letter_is_refused(change):
    record = Letter("train", "run", 0, 0).to_record()
    head = dict(record["coreplay"].items()) | change
    with pytest.raises(InputError):
        Letter.from_record(RecordDict({"coreplay": ConfigRecord(head)}))
    with pytest.raises(InputError):
        Letter.from_record(RecordDict())
    for array in (Array(np.array(["text"])), Array(np.eye(2, dtype=np.float32)), Array("float32", (4,), "", b"short")):
        record["vector"] = ArrayRecord({"vector": array})
        with pytest.raises((InputError, TypeError)):
            Letter.from_record(record)


def test_a_letter_that_was_read_and_its_vector_are_gone_at_once():
    """Not when the collector comes: on Ray each keeps a whole model in shared memory until then."""
    record = Letter("train", "run", 0, 0, {}, np.float32([1, 2]), client="a").to_record(shared=True)
    assert is_shared(record)
    sent = weakref.ref(record["vector"]["vector"])
    gc.disable()
    try:
        letter = Letter.from_record(record)
        del record, letter
        assert sent() is None
    finally:
        gc.enable()


def gradients(k):
    return np.random.default_rng(k).normal(size=(12, 20)) + 0.5


def test_a_secure_dialogue_on_disk_gives_the_sum_and_survives_repeated_letters(tmp_path):
    names, budget = ["ann", "bo", "cy"], 3

    def half(name):
        def make(state):
            client = Client(name, gradients(names.index(name)), budget, run="run")
            if state is not None:
                client.restore(state)
            return client

        return make

    def ask(name, letter):
        def once():  # a new dialogue for every letter, as in a deployment
            dialogue = Dialogue(tmp_path / name)
            return dialogue.contribute(letter, half(name)) if letter.act == "contribute" else dialogue.step(letter)

        first = once()
        if letter.act != "contribute":
            assert once().data == first.data
            with pytest.raises(InputError):
                Dialogue(tmp_path / name).step(Letter(letter.act, "run", 0, 0, data=b"another"))
        return first.data

    server = SecureServer(dict.fromkeys(names, float(budget)), 20, Stamp("run", 0, 0))
    for name in names:
        server.receive(Keys.from_bytes(ask(name, Letter("contribute", "run", 0, 0, {"secure": True}))))
    for name in names:
        server.receive(Shares.from_bytes(ask(name, Letter("share", "run", 0, 0, data=server.roster().to_bytes()))))
    for name in names[:2]:  # the third drops out
        server.receive(Masked.from_bytes(ask(name, Letter("mask", "run", 0, 0, data=server.inbox(name).to_bytes()))))
    for name in names[:2]:
        server.receive(Reveal.from_bytes(ask(name, Letter("reveal", "run", 0, 0, data=server.request().to_bytes()))))
    expected = sum(half(name)(None).begin().vector for name in names[:2])
    np.testing.assert_allclose(server.total(), expected, atol=1e-4)
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*/secure-*.bin"))


def test_a_dialogue_begun_anew_forgets_what_was_said_before(tmp_path):
    def make(state):
        client = Client("ann", gradients(0), 3, run="run")
        if state is not None:
            client.restore(state)
        return client

    def rounds(dialogue):
        server = Server({"ann": 3}, 20, 3, run="run")
        data, sent = b"", []
        while not server.done:
            reply = dialogue.contribute(
                Letter("contribute", "run", 0, server.round, {"secure": False}, data=data), make
            )
            assert server.receive(reply.data).counted
            sent.append(reply.data)
            data = server.broadcast().to_bytes()
        return sent, dialogue.settle(Letter("settle", "run", 0, 0, data=data), make).tolist()

    dialogue = Dialogue(tmp_path)
    assert rounds(dialogue) == rounds(dialogue)


@pytest.mark.parametrize("run", ["../../etc", "", "A" * 32, "0" * 31])
def test_a_run_number_that_is_none_never_becomes_a_path(run, tmp_path):
    with pytest.raises(InputError, match="number"):
        Device(Node(tmp_path, "ann", None), run)


def test_nodes_say_what_they_lack(tmp_path, monkeypatch):
    monkeypatch.delenv("COREPLAY_STATE", raising=False)
    with pytest.raises(InputError, match="folder"):
        Node.read({"client-id": "ann"})
    with pytest.raises(InputError, match="client-id"):
        Node.read({"state": str(tmp_path)})
    monkeypatch.setenv("COREPLAY_STATE", str(tmp_path))
    assert Node.read({"partition-id": 3}).partition == 3
    device = Device(Node(tmp_path, "ann", None), "0" * 32)
    for act, message in (("train", "not heard"), ("dance", "nobody here knows")):
        with pytest.raises(InputError, match=message):
            device.answer(Letter(act, "0" * 32, 0, 0, model=np.zeros(3, np.float32)))
