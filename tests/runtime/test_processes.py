"""The local engine: the same results with any number of workers, after deaths, and after going on."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from coreplay.errors import InputError
from coreplay.learning import FlatModel, make_algorithm, train
from coreplay.replay import Buffer, Store
from coreplay.runtime import Config, ProcessesEngine, WorkerError, prepare, run
from coreplay.selection import select

RECORDS = ("metrics.jsonl", "rounds.jsonl", "coordination.jsonl")
TINY = {
    "stream": {"options": {"num_clients": 6, "num_periods": 3, "samples": 8}},
    "task": {
        "options": {
            "num_layers": 1,
            "hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 32,
            "vocabulary_size": 200,
            "max_length": 16,
        }
    },
    "federated": {"rounds": 2, "batch_size": 4},
    "replay": {"budget": 3, "coordination_rounds": 2},
    "gradients": {"sketch_size": 64},
    "engine": {"aggregation_groups": 4, "checkpoint_seconds": 0},
}


def config(**changes):
    return Config.make(TINY, {name.replace("__", "."): value for name, value in changes.items()})


@pytest.fixture(scope="module")
def things():
    return prepare(config())


@pytest.fixture(scope="module")
def engine(things):
    with ProcessesEngine(things.stream, things.task, things.start, workers=2) as made:
        yield made


def records(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in RECORDS if (folder / name).exists()}


def test_a_round_equals_a_plain_loop(things, engine, tmp_path):
    settings = config()
    engine.begin(settings, tmp_path)
    engine.rewind(-1)
    clients = list(things.stream.clients)
    update = engine.train(0, 0, clients, things.start, lambda facts: None)
    expected = np.zeros(len(things.start))
    samples = 0
    for client in clients:
        flat = FlatModel(things.task.model(0))
        mine = things.stream.samples(client, 0)
        made = make_algorithm("fedavg")
        train(flat, things.task, mine, made, settings.federated, seed=0, client=client, period=0, round=0)
        expected += len(mine) * (flat.numpy() - things.start).astype(np.float64)
        samples += len(mine)
    assert update.samples == samples
    np.testing.assert_allclose(update.change, expected, rtol=1e-3, atol=1e-5)


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
def test_two_workers_one_and_none_give_the_same_bits(changes, things, engine, tmp_path):
    settings = config(**changes)
    two = run(settings, tmp_path / "two", prepared=things, engine=engine)
    with ProcessesEngine(things.stream, things.task, things.start, workers=1) as single:
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


@pytest.mark.parametrize("featureless", [False, True])
def test_herding_uses_the_features_of_the_task(featureless, things, tmp_path, monkeypatch):
    """Without features it follows the gradients."""
    task = things.task
    if featureless:
        (tmp_path / "featureless.py").write_text(FEATURELESS)
        monkeypatch.syspath_prepend(tmp_path)
        task = import_module("featureless").Featureless(things.task)
    settings = config(replay__strategy="herding")
    with ProcessesEngine(things.stream, task, things.start, workers=1) as made:
        made.begin(settings, tmp_path)
        made.rewind(-1)
        made.choose(0, list(things.stream.clients), things.start, lambda facts: None)
    flat = FlatModel(things.task.model(0))
    flat.load(things.start)
    model = flat.model.eval()
    same = []
    with Store.open(tmp_path / "buffers.sqlite") as store, torch.no_grad():
        for client in things.stream.clients:
            samples = things.stream.samples(client, 0)
            means = []
            for k in range(len(samples)):  # one sentence at a time: no padding, no masks
                ids, _ = things.task.vocabulary.encode(samples[[k]].texts, 16)
                means.append(model.bert(input_ids=torch.from_numpy(ids)).last_hidden_state[0].mean(dim=0).numpy())
            kept = select(gram=np.eye(len(samples)), budget=3, method="herding", features=np.stack(means))
            found = sorted(item.key for item in store.load(client).items)
            expected = sorted(f"{number:016x}" for number in samples.ids[kept].tolist())
            same.append(found == expected)
    assert all(same) is not featureless


def test_replay_changes_the_training(things, engine, tmp_path):
    rounds = {}
    for strategy in ("none", "naive_uniform"):
        run(config(replay__strategy=strategy), tmp_path / strategy, prepared=things, engine=engine)
        rounds[strategy] = (tmp_path / strategy / "rounds.jsonl").read_text().splitlines()
    assert rounds["none"][:2] == rounds["naive_uniform"][:2], "before the first choice all is alike"
    assert all(a != b for a, b in zip(rounds["none"][2:], rounds["naive_uniform"][2:], strict=True))


def test_relative_change_to_a_baseline(things, engine, tmp_path):
    none = run(config(replay__strategy="none"), tmp_path / "none", prepared=things, engine=engine)
    kept = run(config(baseline=str(tmp_path / "none")), tmp_path / "kept", prepared=things, engine=engine)
    expected = [a / b - 1 for a, b in zip(kept.metrics["perplexity"], none.metrics["perplexity"], strict=True)]
    assert kept.metrics["relative_change"] == pytest.approx(expected)
    with pytest.raises(InputError, match="no finished run"):
        prepare(config(baseline=str(tmp_path / "nowhere")))


def test_the_log_has_no_text_of_clients(things, engine, tmp_path):
    run(config(), tmp_path / "run", prepared=things, engine=engine)
    log = (tmp_path / "run/run.log").read_text()
    texts = [text for client in things.stream.clients for text in things.stream.samples(client, 0).texts]
    assert len(texts) > 10
    assert not any(text in log for text in texts)


def test_a_killed_worker_is_replaced_and_its_clients_tried_again(things, tmp_path):
    whole = run(config(), tmp_path / "whole", prepared=things)
    warnings = []

    def kill_once(event):
        if event.kind == "warning":
            warnings.append(event.facts["text"])
        if event.kind == "round" and event.round == 0 and event.period == 1:
            os.kill(pids(own)[-1], signal.SIGKILL)

    with ProcessesEngine(things.stream, things.task, things.start, workers=2) as own:
        broken = run(config(), tmp_path / "broken", prepared=things, observer=kill_once, engine=own)
    assert len(warnings) == 1
    assert "signal 9" in warnings[0]
    assert broken.metrics == whole.metrics
    assert records(tmp_path / "whole") == records(tmp_path / "broken")


def pids(engine: ProcessesEngine) -> list[int]:
    return [worker._process.pid for worker in engine._workers]


FEATURELESS = """
class Featureless:
    'A task without features.'

    def __init__(self, task):
        self._task = task

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._task, name)

    def features(self, model, batch):
        return None
"""


FAILING = """
class Failing:
    'A task whose training fails on one text, as often as a file says.'

    def __init__(self, task, text, counter):
        self._task, self._text, self._counter = task, text, counter

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._task, name)

    def collate(self, samples, view=None):
        if view is not None and self._text in samples.texts:
            left = int(self._counter.read_text())
            if left:
                self._counter.write_text(str(left - 1))
                raise ValueError("the sensor is gone")
        return self._task.collate(samples, view)
"""


def test_a_client_that_fails_is_tried_once_more_and_named(things, tmp_path, monkeypatch):
    client = things.stream.clients[0]
    counter = tmp_path / "failures"
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    task = import_module("failing").Failing(things.task, things.stream.samples(client, 0).texts[0], counter)
    told = []
    with ProcessesEngine(things.stream, task, things.start, workers=1) as made:
        made.begin(config(), tmp_path)
        made.rewind(-1)
        counter.write_text("1")
        first = made.train(0, 0, [client], things.start, told.append)
        again = made.train(0, 0, [client], things.start, told.append)
        np.testing.assert_array_equal(first.change, again.change)
        assert next(fact for fact in told if "text" in fact)["text"].startswith(f"client {client!r} failed")
        counter.write_text("2")
        with pytest.raises(WorkerError, match="failed twice: the sensor is gone\nTraceback") as caught:
            made.train(0, 0, [client], things.start, told.append)
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


def test_killed_anywhere_and_resumed_gives_the_same_bits(things, engine, tmp_path):
    settings = config()
    run(settings, tmp_path / "whole", prepared=things, engine=engine)
    (tmp_path / "run.toml").write_text(settings.toml())
    (tmp_path / "program.py").write_text(SCRIPT)
    arguments = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "killed")]
    process = subprocess.Popen([*arguments, "new", str(tmp_path / "run.toml")])
    checkpoint = tmp_path / "killed/checkpoint.safetensors"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed/summary.json").exists(), "killed too late to show anything"
    subprocess.run([*arguments, "resume", str(tmp_path / "run.toml")], check=True)
    assert records(tmp_path / "killed") == records(tmp_path / "whole")


class Unseen:
    """A task in a module that a worker can't import."""


def test_a_task_that_workers_can_not_import_is_explained(things):
    with pytest.raises(InputError, match=r"can't import the task: No module named .* define its class in a module"):
        ProcessesEngine(things.stream, Unseen(), things.start, workers=1)


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
    "engine": {"workers": 1},
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


def test_bad_input_is_found_before_any_work(things, tmp_path):
    for changes, words in (
        ({"engine__name": "proceses"}, "did you mean 'processes'"),
        ({"stream__num_clients": 99}, r"stream\.num_clients = 99: the stream has 6"),
        ({"periods": 9}, "periods = 9: the stream has 3"),
        ({"stream__options": {"num_clients": 6, "test": 0.0}}, "no test data"),
        ({"replay__client_budgets": {"nobody": 3}}, "'nobody'"),
        ({"gradients__parameters": ["nosuch.*"]}, "matches no parameter"),
        ({"stream__options": {"num_clients": "six"}}, "got 'six': must be a whole number"),
    ):
        with pytest.raises(InputError, match=words):
            prepare(config(**changes))
    with pytest.raises(InputError, match="holds no run"):
        run(config(), tmp_path / "empty", resume=True)


def test_a_run_does_not_go_on_without_its_buffers(things, tmp_path):
    folder, stopped = tmp_path / "run", []

    def stop(event):
        if event.kind == "round" and event.period == 2:
            stopped.append(event)
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        ProcessesEngine(things.stream, things.task, things.start, workers=1) as engine,
    ):
        run(config(), folder, prepared=things, engine=engine, observer=stop)
    kept = folder / "buffers.sqlite"
    safe = kept.rename(tmp_path / "safe.sqlite")
    with pytest.raises(
        InputError, match=r"sqlite' is missing, and with it the buffers that the run kept after period 2"
    ):
        run(config(), folder, resume=True, prepared=things)
    assert not kept.exists(), "nothing is made in its place"
    with Store.open(kept) as store:
        store.replace(Buffer(things.stream.clients[0], 1, 5))
    with pytest.raises(InputError, match="holds other buffers than those that the run kept after period 2"):
        run(config(), folder, resume=True, prepared=things)
    kept.unlink()
    safe.rename(kept)
    client = things.stream.clients[0]
    with Store.open(kept) as store:
        store.erase(client, store.load(client).items[0].key)
    run(config(), folder, resume=True, prepared=things)
    assert (folder / "summary.json").exists(), "an erasure does not stop a run"


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
