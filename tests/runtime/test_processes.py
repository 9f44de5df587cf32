"""The engine of worker processes: the same results with any number of workers, after deaths, and after going on."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from coreplay.errors import InputError
from coreplay.learning import FlatModel, Methods, Turn, train
from coreplay.replay import Store
from coreplay.runtime import Config, ProcessesEngine, WorkerError, prepare, run
from coreplay.runtime.config import ContinualConfig
from coreplay.runtime.engines.importing import check_missing
from coreplay.runtime.events import Problem
from tests.runtime.common import TINY, config, records, train_round

pytestmark = pytest.mark.xdist_group("processes")  # which share engines


def digits(**changes):
    """Return a configuration for processes of a test's own: with texts each spends seconds on loading transformers."""
    data = {"stream": {"source": "digits", "options": {"num_clients": 4, "num_periods": 2}}}
    data |= {"task": {"name": "image_classification", "options": {"channels": 2}}}
    data |= {name: TINY[name] for name in ("federated", "replay", "gradients", "engine")}
    return Config.make(data, {name.replace("__", "."): value for name, value in changes.items()})


@pytest.fixture(scope="module")
def images():
    return prepare(digits())


@pytest.fixture(scope="module")
def things():
    return prepare(config())


@pytest.fixture(scope="module")
def engine(things):
    with ProcessesEngine(things.stream, things.task, things.start, workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def single(things):
    with ProcessesEngine(things.stream, things.task, things.start, workers=1) as made:
        yield made


def test_a_round_equals_a_plain_loop(things, engine, tmp_path):
    settings = config()
    engine.begin(settings, tmp_path)
    engine.rewind(-1)
    clients = list(things.stream.clients)
    update = train_round(engine, clients, things.start)
    expected = np.zeros(len(things.start))
    samples = 0
    for client in clients:
        flat = FlatModel(things.task.model(0))
        mine = things.stream.samples(client, 0)
        train(flat, things.task, mine, Methods("fedavg", {}), settings.federated, Turn(0, client, 0, 0))
        expected += len(mine) * (flat.numpy() - things.start).astype(np.float64)
        samples += len(mine)
    assert update.weight == samples
    np.testing.assert_allclose(update.sums["change"], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"replay__strategy": "none"},
        {"replay__strategy": "full_history"},
        {"replay__strategy": "approximate_uniform"},
        {"replay__strategy": "polished"},
        {"replay__strategy": "alternating"},
        {"replay__strategy": "corrective", "gradients__num_views": 2},
        {"replay__strategy": "corrective", "gradients__backend": "factored", "federated__algorithm": "fedadam"},
        {"replay__strategy": "corrective", "replay__budget_fraction": 0.2, "federated__clients_per_round": 3},
    ],
    ids=lambda c: "-".join(str(v) for v in c.values()),
)
def test_two_workers_one_and_none_give_the_same_bits(changes, things, engine, single, tmp_path):
    settings = config(**changes)
    two = run(settings, tmp_path / "two", prepared=things, engine=engine)
    one = run(settings, tmp_path / "one", prepared=things, engine=single)
    assert records(tmp_path / "one") == records(tmp_path / "two")
    serial = settings.model_copy(update={"engine": settings.engine.model_copy(update={"name": "serial"})})
    run(serial, tmp_path / "serial", prepared=things)
    assert records(tmp_path / "serial") == records(tmp_path / "two")
    assert one.metrics == two.metrics
    assert len(two.metrics["perplexity"]) == 3
    with Store.open(tmp_path / "one/buffers.sqlite") as a, Store.open(tmp_path / "two/buffers.sqlite") as b:
        assert a.load_many(a.clients()) == b.load_many(b.clients())
        held = {client: len(buffer.items) for client, buffer in a.load_many(a.clients()).items()}
    offered = dict(zip(things.stream.clients, things.stream.counts("train")[:, :2].sum(axis=1).tolist(), strict=True))
    match settings.replay.strategy:
        case "none":
            assert held == {}
        case "full_history":
            assert held == offered
        case _:
            budgets = {client: settings.replay.budget_of(client, offered[client]) for client in offered}
            assert all(0 < held[client] <= budgets[client] for client in held)


def test_a_killed_worker_is_replaced_and_its_clients_tried_again(images, tmp_path):
    whole = run(digits(engine__name="serial"), tmp_path / "whole", prepared=images)
    warnings = []

    def kill_once(event):
        if event.kind == "warning":
            warnings.append(event.facts["text"])
        if event.kind == "round" and event.round == 0 and event.period == 1:
            os.kill(pids(own)[-1], signal.SIGKILL)

    with ProcessesEngine(images.stream, images.task, images.start, workers=2) as own:
        broken = run(digits(), tmp_path / "broken", prepared=images, observer=kill_once, engine=own)
    assert len(warnings) == 1
    assert "signal 9" in warnings[0]
    assert broken.metrics == whole.metrics
    assert records(tmp_path / "whole") == records(tmp_path / "broken")


def pids(engine: ProcessesEngine) -> list[int]:
    return [worker._process.pid for worker in engine._workers]


FAILING = """
class Failing:
    'A task whose training fails on one sample, as often as a file says.'

    def __init__(self, task, number, counter):
        self._task, self._number, self._counter = task, number, counter

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._task, name)

    def collate(self, samples, view=None):
        if view is not None and self._number in samples.ids:
            left = int(self._counter.read_text())
            if left:
                self._counter.write_text(str(left - 1))
                raise ValueError("the sensor is gone")
        return self._task.collate(samples, view)
"""


def test_a_client_that_fails_is_tried_once_more_and_named(images, tmp_path, monkeypatch):
    client = images.stream.clients[0]
    counter = tmp_path / "failures"
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    task = import_module("failing").Failing(images.task, images.stream.samples(client, 0).ids[0], counter)
    told = []
    with ProcessesEngine(images.stream, task, images.start, workers=1) as made:
        made.begin(digits(), tmp_path)
        made.rewind(-1)
        counter.write_text("1")
        first = train_round(made, [client], images.start, told.append)
        again = train_round(made, [client], images.start, told.append)
        np.testing.assert_array_equal(first.sums["change"], again.sums["change"])
        assert next(r.text for r in told if isinstance(r, Problem)).startswith(f"client {client!r} failed")
        counter.write_text("2")
        with pytest.raises(WorkerError, match="failed twice: the sensor is gone\nTraceback") as caught:
            train_round(made, [client], images.start, told.append)
        assert repr(client) in str(caught.value)
        (worker,) = pids(made)
    assert not Path(f"/proc/{worker}").exists(), "closing leaves no process"


SCRIPT = """
import sys
from coreplay.runtime import run
from coreplay.runtime import Config
if __name__ == "__main__":
    folder, resume = sys.argv[1], sys.argv[2] == "resume"
    run(Config.load(sys.argv[3]), folder, resume=resume)
"""


def test_killed_anywhere_and_resumed_gives_the_same_bits(images, tmp_path):
    settings = digits(federated__rounds=10, engine__workers=2)
    run(digits(federated__rounds=10, engine__name="serial"), tmp_path / "whole", prepared=images)
    (tmp_path / "run.toml").write_text(settings.toml())
    (tmp_path / "program.py").write_text(SCRIPT)
    arguments = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "killed")]
    process = subprocess.Popen([*arguments, "new", str(tmp_path / "run.toml")])
    rounds = tmp_path / "killed/rounds.jsonl"
    while process.poll() is None and not (rounds.exists() and len(rounds.read_text().splitlines()) > 3):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed/summary.json").exists(), "killed too late to show anything"
    subprocess.run([*arguments, "resume", str(tmp_path / "run.toml")], check=True)
    assert records(tmp_path / "killed") == records(tmp_path / "whole")


def test_a_task_that_workers_can_not_import_is_explained(images, monkeypatch):
    module = ModuleType("module_of_this_process")
    module.Unseen = type("Unseen", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(InputError, match=r"can't import the task: No module named .* define its class in a module"):
        ProcessesEngine(images.stream, module.Unseen(), images.start, workers=1)


SELECTOR = """
import numpy as np
from coreplay.selection import selector
@selector("first_ones")
def first_ones(pool, budget, rng):
    "Keep the first."
    return np.arange(budget)
"""
DIGITS = """
import coreplay
config = coreplay.Config.make({
    "stream": {"source": "digits", "options": {"num_clients": 2, "num_periods": 2}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {"rounds": 1},
    "replay": {"strategy": "first_ones", "budget": 2},
    "engine": {"name": "processes", "workers": 1},
})
"""
RUN = 'print(coreplay.run(config, "new").summary["strategy"])\n'


def indented(text):
    return "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in text.splitlines())


PROGRAMS = {  # arguments of Python, what goes into program.py or standard input, and the error
    "no guard": (["program.py"], SELECTOR + DIGITS + RUN, 'under `if __name__ == "__main__":`'),
    "from standard input": (["-"], SELECTOR + DIGITS + RUN, "read from standard input"),
    "in a cell": (["-c", SELECTOR + DIGITS + RUN], "", "strategy 'first_ones' .* put it into a module"),
    "under the guard": (["program.py"], indented(SELECTOR + DIGITS + RUN), "strategy 'first_ones' .* put it into a mo"),
    "in a module": (["-c", "import own_selector\n" + DIGITS + RUN], "", None),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_what_workers_can_not_import_is_explained_before_any_training(case, tmp_path):
    arguments, text, words = PROGRAMS[case]
    (tmp_path / "own_selector.py").write_text(SELECTOR)
    (tmp_path / "program.py").write_text(text)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    if words is None:
        assert (done.stdout, done.stderr) == ("first_ones\n", "")
        return
    last = done.stderr.splitlines()[-1]
    assert last.startswith("coreplay.errors.InputError: ")
    assert re.search(words, last)
    assert done.stderr.count("Traceback") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (("continual method", "mine"), "continual method 'mine' is unknown to worker processes"),
        (("coordination method", "corrective"), "strategy 'corrective' is unknown to worker processes"),
        (("algorithm", "fedavg"), "algorithm 'fedavg' is unknown to worker processes"),
    ],
)
def test_what_a_run_needs_and_workers_do_not_know_is_named(key, words):
    settings = config().model_copy(update={"continual": ContinualConfig(methods=["mine"])})
    check_missing(settings, {("method", "another")})
    with pytest.raises(InputError, match=words):
        check_missing(settings, {("method", "another"), key})


def test_folders_that_are_taken_or_damaged(things, engine, tmp_path):
    folder = tmp_path / "run"
    run(config(), folder, prepared=things, engine=engine)
    with pytest.raises(InputError, match="holds a run already"):
        run(config(), folder, prepared=things, engine=engine)
    before = records(folder)
    run(config(), folder, resume=True, prepared=things, engine=engine)
    assert records(folder) == before, "a finished run stays as it is"
    (folder / "checkpoint.safetensors").unlink()
    run(config(engine__aggregation_groups=2), folder, resume=True, prepared=things, engine=engine)
    assert records(folder) == before, "the groups are those that the run began with"
    (folder / "checkpoint.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(InputError, match="damaged"):
        run(config(), folder, resume=True, prepared=things, engine=engine)
    (folder / "checkpoint.safetensors").unlink()
    engine.begin(config(), tmp_path / "elsewhere")  # lets go of the database, whose log else mends it
    (folder / "buffers.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(InputError, match="no SQLite database"):
        run(config(), folder, resume=True, prepared=things, engine=engine)
