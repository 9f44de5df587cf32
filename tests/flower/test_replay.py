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
from coreplay.flower.rounds import is_finite, is_whole
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import nn

from coreplay.coordination import Server
from coreplay.errors import InputError
from coreplay.flower import Memory, choose_jointly, keeper, next_period
from coreplay.flower.messages import Letter, is_shared
from coreplay.flower.node import BusyError, Node
from coreplay.flower.state_lock import alone
from coreplay.replay import Store, path_for
from coreplay.runtime.engine import EngineError
from tests.flower.nodes import Nodes


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
    for periods in (range(2), range(2, 4)):  # the app is started again, and goes on
        memory = Memory(context, budget=4, sketch_size=64)
        for period in periods:
            joined = period_of_app(memory, period)
            assert joined["x"].shape == (16, 3)
            old = joined["y"][12:]
            assert set(old.tolist()) <= set(map(float, range(period + 1)))
            known = torch.cat([data(k)["x"] for k in range(period + 1)])
            assert all((row == known).all(1).any() for row in joined["x"][12:])
    assert memory.kept() == 4
    (place,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    assert sorted(entry.name for entry in place.iterdir() if entry.is_dir()) == ["3"]


def test_repeated_samples_are_kept_under_keys_of_their_own(tmp_path):
    """Short texts repeat: a memory keeps them all, under the same keys when the period is chosen again."""
    memory = Memory(
        Context(1, 2, {"client-id": "ann", "state": str(tmp_path)}, RecordDict(), {}), budget=20, sketch_size=64
    )
    same = {"x": torch.ones(5, 3), "y": torch.zeros(5)}
    arrays = ArrayRecord(nn.Linear(3, 1).state_dict())

    def keys(period):
        letter = Letter("settle", "app", period, 0, {"talk": "one"}, arrays)
        assert memory._answer(letter, nn.Linear(3, 1), losses, same).facts == {"kept": 5 * (period + 1)}
        with memory._store() as store:
            return [item.key for item in store.load("ann").items]

    first = keys(0)
    assert len(set(first)) == 5
    assert keys(0) == first
    second = keys(1)
    assert len(set(second)) == 10
    assert second[5:] == first  # what was kept before is still known by its key
    assert keys(1) == second


class App:
    """An app of somebody's own on nodes in this process; `data` may be changed between calls, as months pass."""

    def __init__(self, nodes, budgets, sizes=None):
        self.nodes, self.data = nodes, data
        for k, budget in enumerate(budgets):
            size = sizes[k] if sizes else 64
            nodes.add("state", self._answer(budget, size), **{"client-id": f"c{k}"})
        torch.manual_seed(0)
        self.arrays = ArrayRecord(nn.Linear(3, 1).state_dict())

    def _answer(self, budget, size):
        def answer(message, context):
            shift = int(context.node_config["client-id"][1:])

            def load(period):
                return {name: values + shift for name, values in self.data(period).items()}

            return Memory(context, budget, sketch_size=size).answer(message, nn.Linear(3, 1), losses, load)

        return answer

    def choose(self, period, **options):
        return choose_jointly(self.nodes.grid, self.arrays, period=period, rounds=2, timeout=20, **options)

    def next(self):
        return next_period(self.nodes.grid, clients=len(self.nodes.configs), timeout=20)

    def held(self):
        """Return what each client has on its disk."""
        found = {}
        for place in sorted(self.nodes.folder.glob("state/*/buffers.sqlite")):
            with Store.open(place) as store:
                found |= {c: (store.load(c).period, store.load(c).items) for c in store.clients()}
        return found


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    yield made
    made.close()


def test_an_app_that_is_started_again_goes_on_and_never_loses_a_buffer_unasked(nodes):
    app = App(nodes, [4, 4, 4])
    assert app.next() == 0
    for period in range(3):
        assert app.choose(period).kept == {"c0": 4, "c1": 4, "c2": 4}
        assert app.next() == period + 1
    before = app.held()
    for wrong in (0, 1, 4):
        with pytest.raises(InputError, match=f"period = {wrong} .* after period 2; .*period=3 .* fresh=True"):
            app.choose(wrong)
    app.data = lambda period: {"x": torch.randn(9, 3), "y": torch.zeros(9)}  # next month, and still period=2
    assert all("other data" in text for text in refused(app, 2))
    assert app.held() == before
    app.data = data
    assert app.choose(2).problems == []  # the same period once more, as after a crash
    assert app.held() == before
    assert app.choose(0, fresh=True).problems == []
    assert {period for period, _ in app.held().values()} == {0}
    assert app.next() == 1


def refused(app, period):
    """Return why no client takes part."""
    with pytest.raises(EngineError) as found:
        app.choose(period)
    return str(found.value).split("missing: ")[1].split("; ")


def test_a_period_that_was_cut_short_is_done_again_and_a_client_that_missed_one_goes_on(nodes):
    app = App(nodes, [4, 4, 4])
    app.choose(0)
    held = app.held()
    with Store.open(path_for(nodes.folder / "state", "c2").with_suffix("") / "buffers.sqlite") as store:
        store.rewind(-1)  # the server was killed before c2 had settled
    assert app.next() == 1  # most have
    assert app.choose(0).kept == {"c0": 4, "c1": 4, "c2": 4}
    assert app.held() == held
    app.nodes.answers[next(reversed(nodes.configs))] = silent
    assert set(app.choose(1, quorum=0.5).kept) == {"c0", "c1"}


def test_a_client_with_an_odd_sketch_or_budget_is_named_and_the_others_coordinate(nodes):
    """Also if it is the first in order; it chooses alone."""
    app = App(nodes, [1, 11, 1, 1], sizes=[2, 64, 64, 64])
    found = app.choose(0)
    assert found.kept == {"c0": 1, "c1": 11, "c2": 1, "c3": 1}
    assert [round.latest.answered for round in found.rounds] == [2, 2]
    first, second = found.problems
    assert "'c0' takes no part in the coordination: it sketches gradients to 2 numbers, most clients to 64" in first
    assert "'c1' takes no part in the coordination: it has a budget of 11, at most 10 is allowed" in second
    assert app.choose(0, max_budget=11).rounds[0].latest.answered == 3


def test_one_of_two_clients_does_not_set_the_limit_of_its_own_budget(nodes):
    (problem,) = App(nodes, [1, 11]).choose(0).problems
    assert "'c1' takes no part in the coordination: it has a budget of 11, at most 10 is allowed" in problem


def silent(message, context):
    reply = Letter.from_record(message.content).reply("", {"error": "not today"})
    return Message(reply.to_record(), reply_to=message)


def test_what_goes_wrong_at_a_client_never_quotes_its_data(tmp_path):
    secret = tmp_path / "data.jsonl"
    secret.write_text('{"client": "ann", "text": "my secret diary"\n')
    node = Node(tmp_path / "state", "ann", None, str(secret))
    given = {
        "stream": {"source": "files", "options": {}, "num_clients": None, "client_seed": 0},
        "task": {"options": {}},
    }
    facts = {"config": given, "files": {}, "until": -1}
    reply = keeper.respond(node, Letter("hello", "0" * 32, 0, 0, facts))
    assert reply.facts["error"].endswith("the log of its node says more")
    assert "diary" not in str(reply.facts)


KEPT = """
import sys, time
from pathlib import Path
from coreplay.flower import keeper
from coreplay.flower.messages import Letter
from coreplay.flower.node import Node
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
from coreplay.flower import keeper
from coreplay.flower.messages import Letter
from coreplay.flower.node import Node
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
    memory = Memory(context, budget=4, sketch_size=64)
    period_of_app(memory, 0)
    found = modes(tmp_path)
    del found["."]
    assert {mode for name, mode in found.items() if (tmp_path / name).is_dir()} == {0o700}
    samples = [name for name in found if name.endswith((".sqlite", ".safetensors", ".bin"))]
    assert len(samples) >= 3
    assert {found[name] for name in samples} == {0o600}
