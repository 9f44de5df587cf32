"""Whole runs on the serial engine: what they keep, compare, log and refuse."""

from importlib import import_module

import numpy as np
import pytest
import torch

from coreplay.errors import InputError
from coreplay.learning import FlatModel
from coreplay.replay import Buffer, Store
from coreplay.runtime import SerialEngine, keeping, prepare, run
from coreplay.selection import select
from tests.runtime.common import config as tiny


def config(**changes):
    return tiny(**({"engine__name": "serial"} | changes))


@pytest.fixture(scope="module")
def things():
    return prepare(config())


@pytest.fixture(scope="module")
def engine(things):
    with SerialEngine(things.stream, things.task, things.start) as made:
        yield made


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


@pytest.mark.parametrize("featureless", [False, True])
def test_herding_uses_the_features_of_the_task(featureless, things, tmp_path, monkeypatch):
    """Without features it follows the gradients."""
    task = things.task
    if featureless:
        (tmp_path / "featureless.py").write_text(FEATURELESS)
        monkeypatch.syspath_prepend(tmp_path)
        task = import_module("featureless").Featureless(things.task)
    settings = config(replay__strategy="herding")
    with SerialEngine(things.stream, task, things.start) as made:
        made.begin(settings, tmp_path)
        made.rewind(-1)
        keeping.select(made, 0, things.stream.clients, {"model": things.start}, lambda client: 3, lambda report: None)
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
            kept = select(gram=np.eye(len(samples)), budget=3, method="herding", columns={"features": np.stack(means)})
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
        SerialEngine(things.stream, things.task, things.start) as engine,
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
