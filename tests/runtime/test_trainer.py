"""The run's records and its server step, on an engine that answers what a test says."""

import json

import numpy as np
import pytest
from torch import nn

from coreplay.data import load
from coreplay.errors import InputError
from coreplay.learning import FlatModel, RoundInfo, make_algorithm
from coreplay.report.text import run_table
from coreplay.runtime import Config, Run, RunFolder, Trainer
from coreplay.runtime.engine import Engine
from coreplay.runtime.requests import Evaluate, EvaluateReply, TrainReply
from coreplay.runtime.run_index import list_runs
from coreplay.tasks import Metric, Task, WeightedSum


class Answers(Engine):
    """An engine whose clients' changes and test sums are given: one sum per period, or (sum per period, missing)."""

    quorum = 0.0

    def __init__(self, stream, change, evaluations):
        super().__init__()
        self.registry, self.change, self.evaluations = stream, change, iter(evaluations)

    def rewind(self, period):
        pass

    def ask(self, requests, observe, missing):
        if isinstance(requests[0][1], Evaluate):
            found = next(self.evaluations)
            sums, absent = found if isinstance(found, tuple) else (found, {})
            missing |= absent
            reply = EvaluateReply(totals=[s.total for s in sums], weights=[s.weight for s in sums])
            yield "", reply
            return
        for client, _ in requests:
            yield client, TrainReply(samples=1, total=1.0, weight=3.0, arrays={"change": self.change})


class Own(Task):
    """A task of one's own: only its metric matters here."""

    def __init__(self, metric):
        self.metric = metric

    def model(self, seed):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def collate(self, samples, view=None):
        raise NotImplementedError

    def outputs(self, model, batch):
        raise NotImplementedError

    def losses(self, outputs, batch):
        raise NotImplementedError


ACCURACY = Metric("accuracy", lower_is_better=False)


@pytest.fixture(scope="module")
def stream():
    return load("digits", num_clients=3, num_periods=2)


def carried_out(folder, engine, metric=ACCURACY, observer=lambda event: None, start=None, trainable=1, **changes):
    settings = Config.make({"replay": {"strategy": "none"}, "federated": {"rounds": 1}}, changes)
    start = np.zeros(1, np.float32) if start is None else start
    place = RunFolder.create(folder, settings)
    return Trainer(settings, Own(metric), engine, place, start, trainable, observer).run()


def test_a_period_that_is_lost_whole_shows_as_forgetting(stream, tmp_path):
    sums = [[WeightedSum(938, 1000), WeightedSum(0, 1000)], [WeightedSum(0, 1000), WeightedSum(960, 1000)]]
    run = carried_out(tmp_path / "run", Answers(stream, np.zeros(1, np.float32), sums))
    assert run.metrics["forgetting"] == [None, pytest.approx(0.938)]
    assert run.metrics["all_period_forgetting"] == [None, pytest.approx(0.469 - 0.480)]
    assert "| 2 | 0.4800 | 0.9380 |" in run_table(run.summary)


def test_all_period_figures_and_forgetting_are_made_as_the_metric_says(stream, tmp_path):
    root = Metric("RMSE", lower_is_better=True, finish=lambda mean: mean**0.5)
    sums = [[WeightedSum(4, 1), WeightedSum(12, 3)], [WeightedSum(9, 1), WeightedSum(3, 3)]]
    run = carried_out(tmp_path / "run", Answers(stream, np.zeros(1, np.float32), sums), root)
    assert run.metrics["RMSE"] == pytest.approx([2.0, 3**0.5])
    assert run.metrics["RMSE_mean_over_periods"] == pytest.approx([2.0, 5**0.5])
    assert run.metrics["forgetting"] == [None, pytest.approx(1.0)]
    loaded = Run.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.matrix.values, [[2, 2], [3, 1]])
    np.testing.assert_allclose(loaded.matrix.all_period, run.metrics["RMSE"])
    assert loaded.summary["compared_by_ratio"] is False


def test_clients_whose_test_sets_are_missing_are_in_all_records(stream, tmp_path):
    told = []
    whole, part = [WeightedSum(8, 10), WeightedSum(1, 10)], [WeightedSum(3, 5), WeightedSum(4, 5)]
    answers = Answers(stream, np.zeros(1, np.float32), [whole, (part, {"client1": "gone"})])
    run = carried_out(tmp_path / "run", answers, observer=told.append)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row.get("missing") for row in rows] == [None, None, ["client1"], ["client1"]]
    assert run.summary["missing"] == {"1": ["client1"]}
    assert run.metrics["forgetting"] == [None, None], "figures on different test sets are not subtracted"
    assert [event.facts.get("missing") for event in told if event.kind == "evaluated"] == [None, ["client1"]]
    (listed,) = list_runs(tmp_path)
    assert listed.missing == ("client1",)
    assert r"| 2\* | 0.7000 | – |" in run_table(run.summary)
    assert r"\* After period 2, measured on the test sets of all clients but 'client1'." in run_table(run.summary)

    text = (tmp_path / "run/summary.json").read_text()
    for period in ("x", "2", "-1"):
        (tmp_path / "run/summary.json").write_text(text.replace('"1": [', f'"{period}": ['))
        with pytest.raises(InputError, match=f"summary.json' can't be read as a summary: it has no period '{period}'"):
            Run.load(tmp_path / "run")
    (tmp_path / "run/summary.json").write_text(text)

    answers = Answers(stream, np.zeros(1, np.float32), [whole, whole])
    other = carried_out(tmp_path / "other", answers, baseline=str(tmp_path / "run"))
    assert other.metrics["relative_change"] == [0.0, None]


def test_a_baseline_that_does_not_fit_is_refused_before_training(stream, tmp_path):
    sums = [[WeightedSum(8, 10), WeightedSum(1, 10)]] * 2
    answers = Answers(stream, np.zeros(1, np.float32), sums)
    carried_out(tmp_path / "other", answers, Metric("F1", lower_is_better=False))
    with pytest.raises(InputError, match="that run has no accuracy after each of 2 periods"):
        carried_out(tmp_path / "run", Answers(stream, None, []), baseline=str(tmp_path / "other"))


def test_optimisers_at_the_server_step_parameters_and_average_running_statistics(stream, tmp_path):
    flat = FlatModel(Own(ACCURACY).model(0))
    start = flat.numpy().copy()
    assert 0 < flat.trainable < flat.size
    change = np.random.default_rng(0).normal(size=flat.size).astype(np.float32)
    sums = [[WeightedSum(1, 1)] * 2] * 2
    answers = Answers(stream, change, sums)
    changes = {"federated.algorithm": "fedadam", "federated.options": {"server_lr": 0.1}}
    about = {"start": start, "trainable": flat.trainable}
    carried_out(tmp_path / "run", answers, ACCURACY, **about, **changes)
    found = RunFolder.open(tmp_path / "run").checkpoint().values
    made, n = make_algorithm("fedadam", {"server_lr": 0.1}), flat.trainable
    values, state = start[:n], made.init(start[:n])
    for _ in range(2):
        values, state = made.update(values, change[:n], {}, state, RoundInfo(3, 3, 3, 0, 0))
    np.testing.assert_allclose(found[:n], values, rtol=1e-5)
    np.testing.assert_allclose(found[n:], start[n:] + 2 * change[n:], rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedadam"])
def test_a_cosine_schedule_scales_the_steps_of_the_parameters(algorithm, stream, tmp_path):
    start, change = np.zeros(4, np.float32), np.float32([1, -2, 3, 10])
    answers = Answers(stream, change, [[WeightedSum(1, 1)] * 2] * 2)
    changes = {"federated.algorithm": algorithm, "federated.rounds": 4, "federated.schedule": "cosine"}
    carried_out(tmp_path / "run", answers, start=start, trainable=3, **changes)
    made, values = make_algorithm(algorithm, {}), start[:3]
    state = made.init(values)
    for round in [0, 1, 2, 3] * 2:
        after, state = made.update(values, change[:3], {}, state, RoundInfo(3, 3, 3, 0, round))
        values = values + (1 + np.cos(np.pi * round / 4)) / 2 * (after - values)
    found = RunFolder.open(tmp_path / "run").checkpoint().values
    np.testing.assert_allclose(found[:3], values, rtol=1e-5)
    assert found[3] == 80, "the mean of running statistics is not a step"


def test_damaged_checkpoints_are_refused(stream, tmp_path):
    answers = Answers(stream, np.ones(200, np.float32), [[WeightedSum(1, 1)] * 2] * 2)
    carried_out(tmp_path / "run", answers, start=np.zeros(200, np.float32), trainable=200)
    place = RunFolder.open(tmp_path / "run")
    assert place.checkpoint().values.tolist() == [2.0] * 200
    path = tmp_path / "run/checkpoint.safetensors"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for bit in rng.choice(8 * len(whole), 200, replace=False).tolist():
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        with pytest.raises(InputError, match="damaged"):
            place.checkpoint()


def test_a_checkpoint_with_nan_is_refused(stream, tmp_path):
    answers = Answers(stream, np.ones(4, np.float32), [[WeightedSum(1, 1)] * 2] * 2)
    carried_out(tmp_path / "run", answers, start=np.zeros(4, np.float32), trainable=4)
    place = RunFolder.open(tmp_path / "run")
    found = place.checkpoint()
    found.values[2] = np.nan
    place.save(found)
    with pytest.raises(InputError, match="NaN"):
        place.checkpoint()
