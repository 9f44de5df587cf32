"""The client's memory and the keeper, without Flower's processes."""

import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from torch import nn

from coreplay.coordination import Server
from coreplay.engines.flower import Memory, keeper
from coreplay.engines.flower.claim import alone
from coreplay.engines.flower.letters import Letter, is_shared
from coreplay.engines.flower.node import BusyError, Node
from coreplay.engines.flower.rounds import is_finite, is_whole
from coreplay.replay import path_for


def losses(model, data):
    return (model(data["x"]).squeeze(1) - data["y"]) ** 2


def data(period):
    rng = torch.Generator().manual_seed(period)
    return {"x": torch.randn(12, 3, generator=rng), "y": torch.full((12,), float(period))}


def period_of_app(memory, period):
    """Carry out one period's choice with a single client, and return what it then trains on."""

    def ask(letter):
        found = memory._answer(Letter.from_record(letter.to_record()), nn.Linear(3, 1), losses, data(period))
        assert found.client == memory.client
        return found

    torch.manual_seed(period)
    arrays = ArrayRecord(nn.Linear(3, 1).state_dict())
    hello = ask(Letter("hello", "app", period, 0)).facts
    assert hello["pool"] == 12 + hello["kept"]
    server = Server({memory.client: 4}, 64, 2, run="app", period=period)
    told, model = b"", arrays
    while not server.done:
        facts = {"secure": False, "talk": "one"}
        assert server.receive(ask(Letter("contribute", "app", period, server.round, facts, model, told)).data).counted
        told, model = server.broadcast().to_bytes(), None
    assert ask(Letter("settle", "app", period, 0, {"talk": "one"}, data=told)).facts == {"kept": 4}
    return memory.join(data(period + 1), period + 1)


def test_a_memory_keeps_samples_over_periods_and_over_runs_of_the_app(tmp_path):
    context = Context(1, 2, {"client-id": "../ann", "state": str(tmp_path)}, RecordDict(), {})
    for _ in range(2):  # the same app again, on the same folder
        memory = Memory(context, budget=4, size=64)
        for period in range(3):
            joined = period_of_app(memory, period)
            assert joined["x"].shape == (16, 3)
            old = joined["y"][12:]
            assert set(old.tolist()) <= set(map(float, range(period + 1)))
            known = torch.cat([data(k)["x"] for k in range(period + 1)])
            assert all((row == known).all(1).any() for row in joined["x"][12:])
    assert memory.kept() == 4
    (place,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    assert sorted(entry.name for entry in place.iterdir() if entry.is_dir()) == ["2"]


def test_what_goes_wrong_at_a_client_never_quotes_its_data(tmp_path):
    secret = tmp_path / "data.jsonl"
    secret.write_text('{"client": "ann", "text": "my secret diary"\n')
    node = Node(tmp_path / "state", "ann", None, str(secret))
    given = {"stream": {"source": "files", "options": {}, "clients": None, "sample": 0}, "task": {"options": {}}}
    facts = {"config": given, "files": {}, "until": -1}
    reply = keeper.respond(node, Letter("hello", "0" * 32, 0, 0, facts))
    assert reply.facts["error"].endswith("the log of its node says more")
    assert "diary" not in str(reply.facts)


KEPT = """
import sys, time
from pathlib import Path
from coreplay.engines.flower import keeper
from coreplay.engines.flower.letters import Letter
from coreplay.engines.flower.node import Node
for act in ("dance", "sing"):
    found = keeper.ask(Node(Path(sys.argv[1]), "ann", None, resident=True), Letter(act, "0" * 32, 0, 0))
    print(found.facts["error"], flush=True)
"""


def test_a_keeper_answers_many_letters_and_ends_with_its_node(tmp_path):
    owner = subprocess.Popen(["sleep", "100"])
    owned = f"import os; os.getppid = lambda: {owner.pid}\n"  # whoever asks is a child of the node
    done = subprocess.run(
        [sys.executable, "-c", owned + KEPT, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(" means")[0] for line in done.stdout.splitlines()] == [
        "nobody here knows what 'dance'",
        "nobody here knows what 'sing'",
    ]

    def alive():
        found = subprocess.run(
            ["pgrep", "-f", f"flower.keeper.*{tmp_path}"], capture_output=True, text=True, check=False
        )
        return found.stdout.split()

    assert len(alive()) == 1  # one for both
    owner.kill()
    owner.wait()
    until = time.monotonic() + 20
    while alive() and time.monotonic() < until:
        time.sleep(0.2)
    assert not alive()


BLOCKED = """
import sys
from pathlib import Path
from coreplay.engines.flower import keeper
from coreplay.engines.flower.letters import Letter
from coreplay.engines.flower.node import Node
letter = Letter("share", "0" * 32, 0, 0, {"talk": "one"})
keeper.ask(Node(Path(sys.argv[1]), "ann", None, resident=True), letter)
"""


def test_a_busy_keeper_has_the_files_for_itself_and_ends_with_its_node(tmp_path):
    """The next node of the client waits for the lock, and gets it when the old node is killed."""
    node = Node(tmp_path, "ann", None)
    place = path_for(tmp_path, "ann").with_suffix("") / ("0" * 32) / "0" / "talk"
    place.parent.mkdir(parents=True)
    os.mkfifo(place)  # reading it never ends
    owner = subprocess.Popen(["sleep", "100"])
    script = f"import os; os.getppid = lambda: {owner.pid}\n" + BLOCKED
    asking = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.DEVNULL)
    writing = None
    try:
        until = time.monotonic() + 60
        while writing is None:
            assert asking.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
            with suppress(OSError):  # nobody reads it yet
                writing = os.open(place, os.O_WRONLY | os.O_NONBLOCK)
        with pytest.raises(BusyError, match="client-id"), alone(node, patience=0.5):
            pass
    finally:
        owner.kill()
        owner.wait()
        asking.wait(20)
    with alone(node, patience=20):
        os.close(writing)


def test_figures_that_are_none_do_not_end_a_keeper(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "respond", lambda node, letter: letter.reply("ann", {"total": float("nan")}))
    reply = Letter.from_bytes(keeper._packed(Node(tmp_path, "ann", None), Letter("train", "0" * 32, 0, 0)))
    assert "NaN" in reply.facts["error"]


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), True, "1", None, [1]])
def test_facts_of_strangers_are_looked_at_closely(value):
    assert not is_finite([value], 1)
    assert not is_whole([value])


def test_letters_between_processes_keep_everything():
    sent = Letter("train", "0" * 32, 1, 2, {"a": [1]}, np.arange(3, dtype=np.float32), b"data", "ann")
    found = Letter.from_bytes(sent.to_bytes())
    assert (found.stamp, found.facts, found.data, found.client) == (sent.stamp, sent.facts, b"data", "ann")
    assert found.vector.tolist() == [0, 1, 2]


def test_shared_arrays_are_handed_over_as_buffers_of_their_own():
    sent = Letter("train", "0" * 32, 0, 0, model=np.arange(1000, dtype=np.float32), client="ann")
    buffers = []
    packed = pickle.dumps(sent.to_record(shared=True), 5, buffer_callback=buffers.append)
    assert len(packed) < 2000
    found = pickle.loads(packed, buffers=[memoryview(bytes(b.raw())) for b in buffers])
    assert is_shared(found)
    assert not is_shared(sent.to_record())
    vector = Letter.from_record(found).vector
    assert vector.tobytes() == sent.vector.tobytes()
    assert not vector.flags.writeable  # it is in somebody else's memory


def test_what_a_memory_writes_is_for_its_user_alone(tmp_path, modes):
    context = Context(1, 2, {"client-id": "ann", "state": str(tmp_path / "state")}, RecordDict(), {})
    memory = Memory(context, budget=4, size=64)
    period_of_app(memory, 0)
    found = modes(tmp_path)
    del found["."]
    assert {mode for name, mode in found.items() if (tmp_path / name).is_dir()} == {0o700}
    samples = [name for name in found if name.endswith((".sqlite", ".safetensors", ".bin"))]
    assert len(samples) >= 3
    assert {found[name] for name in samples} == {0o600}
