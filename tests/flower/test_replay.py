"""The replay buffer of an app of your own, and the resident process, without Flower's processes."""

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import nn

from coreplay import registry
from coreplay.coordination import Method, Server, ServerStep, coordination_method
from coreplay.errors import InputError
from coreplay.flower import ReplayBuffer, choose_jointly, next_period
from coreplay.flower.messages import from_record, to_record
from coreplay.flower.node import BusyError, Node
from coreplay.flower.replay import Offer
from coreplay.replay import Store, decode
from coreplay.runtime.engine import EngineError
from coreplay.runtime.requests import Contribute, Failed, KeptReply, Settle
from tests.flower.nodes import Nodes


def losses(model, data):
    return (model(data["x"]).squeeze(1) - data["y"]) ** 2


def data(period):
    rng = torch.Generator().manual_seed(period)
    return {"x": torch.randn(12, 3, generator=rng), "y": torch.full((12,), float(period))}


def period_of_app(buffer, period):
    """Carry out one period's choice with a single client, and return what it then trains on."""

    def ask(request):
        found = buffer._answer(from_record(to_record(request)), nn.Linear(3, 1), losses, data(period))
        return found.answering(request, buffer.client)

    torch.manual_seed(period)
    arrays = {name: values.numpy() for name, values in nn.Linear(3, 1).state_dict().items()}
    offer = ask(Offer(run="app", period=period))
    assert offer.pool == 12 + offer.kept
    server = Server({buffer.client: 4}, 64, 2, run="app", period=period)
    about, broadcast = {"run": "app", "period": period, "session": "one"}, b""
    while not server.done:
        request = Contribute(**about, round=server.round, arrays=arrays, data=broadcast)
        assert server.receive(ask(request).data).counted
        broadcast, arrays = server.broadcast().to_bytes(), {}
    reply = ask(Settle(**about, data=broadcast))
    assert isinstance(reply, KeptReply)
    assert (reply.kept, reply.held) == (4, period)
    return buffer.join(data(period + 1), period + 1)


def test_a_buffer_keeps_samples_over_periods_and_over_runs_of_the_app(tmp_path):
    context = Context(1, 2, {"client-id": "../ann", "state": str(tmp_path)}, RecordDict(), {})
    for periods in (range(2), range(2, 4)):  # the app is started again, and goes on
        buffer = ReplayBuffer(context, budget=4, sketch_size=64)
        for period in periods:
            joined = period_of_app(buffer, period)
            assert joined["x"].shape == (16, 3)
            old = joined["y"][12:]
            assert set(old.tolist()) <= set(map(float, range(period + 1)))
            known = torch.cat([data(k)["x"] for k in range(period + 1)])
            assert all((row == known).all(1).any() for row in joined["x"][12:])
    assert buffer.kept() == 4
    (place,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    assert sorted(entry.name for entry in place.iterdir() if entry.is_dir()) == ["3"]


def test_repeated_samples_are_kept_under_keys_of_their_own(tmp_path):
    """Short texts repeat: a buffer keeps them all, under the same keys when the period is chosen again."""
    buffer = ReplayBuffer(
        Context(1, 2, {"client-id": "ann", "state": str(tmp_path)}, RecordDict(), {}), budget=20, sketch_size=64
    )
    same = {"x": torch.ones(5, 3), "y": torch.zeros(5)}
    arrays = {name: values.numpy() for name, values in nn.Linear(3, 1).state_dict().items()}

    def keys(period):
        request = Settle(run="app", period=period, session="one", arrays=arrays)
        assert buffer._answer(request, nn.Linear(3, 1), losses, same).kept == 5 * (period + 1)
        with buffer._store() as store:
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

    def __init__(self, nodes, budgets, sizes=None, method="corrective"):
        self.nodes, self.data, self.method = nodes, data, method
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

            buffer = ReplayBuffer(context, budget, sketch_size=size, method=self.method)
            return buffer.answer(message, nn.Linear(3, 1), losses, load)

        return answer

    def choose(self, period, **options):
        options |= {"method": self.method, "rounds": 2, "timeout": 20}
        return choose_jointly(self.nodes.grid, self.arrays, period=period, **options)

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
    with Store.open(Node(nodes.folder / "state", "c2", None).folder / "buffers.sqlite") as store:
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
    assert [round.answered for round in found.rounds] == [2, 2]
    first, second = found.problems
    assert "'c0' takes no part in the coordination: it sketches gradients to 2 numbers, most clients to 64" in first
    assert "'c1' takes no part in the coordination: it has a budget of 11, at most 10 is allowed" in second
    assert app.choose(0, max_budget=11).rounds[0].answered == 3


def test_one_of_two_clients_does_not_set_the_limit_of_its_own_budget(nodes):
    (problem,) = App(nodes, [1, 11]).choose(0).problems
    assert "'c1' takes no part in the coordination: it has a budget of 11, at most 10 is allowed" in problem


@pytest.fixture
def reading_columns():
    """Register a coordination method that keeps the samples that arrived first, and of these the largest y."""
    before = set(registry.own)

    @coordination_method("reading_columns")
    @dataclass(frozen=True, kw_only=True)
    class ReadingColumns(Method):
        """Keep the oldest samples."""

        returns_selections: ClassVar[bool] = True
        needs_all_rounds: ClassVar[bool] = False

        def start(self, pool, rng):
            x = np.zeros(pool.size)
            x[np.lexsort((-pool.column("y"), pool.column("arrived")))[: pool.budget]] = 1.0
            return x

        def answer(self, pool, broadcast, past, rng):
            return self.start(pool, rng)

        def server_step(self, sums, clients, previous):
            return ServerStep(sums[-1], 0.0)

    yield
    for key in set(registry.own) - before:
        registry.forget(registry.own[key])


def test_a_coordination_method_reads_the_columns_of_the_data_and_when_samples_arrived(nodes, reading_columns):
    app = App(nodes, [4], method="reading_columns")
    app.data = lambda period: data(period) | {"y": torch.arange(12.0) + 100 * period}
    for period in range(2):
        assert app.choose(period).kept == {"c0": 4}
        (_, items) = app.held()["c0"]
        assert [item.period for item in items] == [0] * 4
        assert sorted(float(decode(item.payload)["y"]) for item in items) == [8, 9, 10, 11]


def silent(message, context):
    reply = Failed(error="not today").answering(from_record(message.content), "")
    return Message(to_record(reply), reply_to=message)


ASKING = """
import sys
from pathlib import Path
from coreplay.flower import resident
from coreplay.flower.messages import from_bytes, to_bytes
from coreplay.flower.node import Node
from coreplay.runtime.requests import Evaluate
node = Node(Path(sys.argv[1]), "ann", None, resident=True)
for run in ("0" * 32, "1"):
    print(from_bytes(resident.ask(node, to_bytes(Evaluate(run=run)))).error, flush=True)
"""


def test_a_resident_process_answers_many_requests_and_ends_with_its_node(tmp_path):
    owner = subprocess.Popen(["sleep", "100"])
    owned = f"import os; os.getppid = lambda: {owner.pid}\n"  # whoever asks is a child of the node
    done = subprocess.run(
        [sys.executable, "-c", owned + ASKING, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "this client has not joined the run",
        "the run's id is not valid",
    ]

    def alive():
        found = subprocess.run(
            ["pgrep", "-f", f"flower.resident.*{tmp_path}"], capture_output=True, text=True, check=False
        )
        return found.stdout.split()

    assert len(alive()) == 1  # one for both
    owner.kill()
    owner.wait()
    until = time.monotonic() + 20
    while alive() and time.monotonic() < until:
        time.sleep(0.2)
    assert not alive()


BUSY = """
import sys
from pathlib import Path
from coreplay.flower import resident
from coreplay.flower.messages import to_bytes
from coreplay.flower.node import Node
from coreplay.runtime.requests import Join
slow = f"import time; open({sys.argv[1] + '/busy'!r}, 'w').close(); time.sleep(1000)"
request = Join(run="0" * 32, config={"plugins": ["slow.py"]}, plugins={"slow.py": slow})
resident.ask(Node(Path(sys.argv[1]), "ann", None, resident=True, plugins=True), to_bytes(request))
"""


def test_a_busy_resident_process_has_the_files_for_itself_and_ends_with_its_node(tmp_path):
    """The next node of the client waits for the lock, and gets it when the old node is killed."""
    node = Node(tmp_path, "ann", None)
    owner = subprocess.Popen(["sleep", "100"])
    script = f"import os; os.getppid = lambda: {owner.pid}\n" + BUSY
    asking = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "busy").exists():
            assert asking.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        with pytest.raises(BusyError, match="client-id"), node.lock(patience=0.5):
            pass
    finally:
        owner.kill()
        owner.wait()
        asking.wait(20)
    with node.lock(patience=20):
        pass


def test_what_a_buffer_writes_is_for_its_user_alone(tmp_path, modes):
    context = Context(1, 2, {"client-id": "ann", "state": str(tmp_path / "state")}, RecordDict(), {})
    buffer = ReplayBuffer(context, budget=4, sketch_size=64)
    period_of_app(buffer, 0)
    found = modes(tmp_path)
    del found["."]
    assert {mode for name, mode in found.items() if (tmp_path / name).is_dir()} == {0o700}
    samples = [name for name in found if name.endswith((".sqlite", ".safetensors", ".sha256"))]
    assert len(samples) == 3
    assert {found[name] for name in samples} == {0o600}
