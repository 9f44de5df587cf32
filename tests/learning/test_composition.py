"""Methods together in one run, on every engine of this machine, and combinations that are refused before work."""

import json

import numpy as np
import pytest
import torch
from tests.learning.test_continual import DIGITS
from tests.learning.test_der import TEXTS
from torch import nn

import coreplay
from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.experiments.scheduler import SweepStatus, run_sweep
from coreplay.experiments.sweep import Sweep
from coreplay.replay import Store
from coreplay.runtime import RunFolder, prepare

ALL = {
    "federated.algorithm": "scaffold",
    "continual.methods": ["distillation", "online_ewc"],
    "continual.options": {"online_ewc": {"max_samples": 5}},
    "replay.strategy": "approximate_uniform",
}


def test_scaffold_distillation_ewc_and_balanced_replay_are_the_same_on_worker_processes(tmp_path):
    for name in ("serial", "processes"):
        settings = coreplay.Config.make(DIGITS, ALL | {"engine.name": name, "engine.workers": 2})
        coreplay.run(settings, tmp_path / name)
    one, two = (RunFolder.open(tmp_path / name).checkpoint() for name in ("serial", "processes"))
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_array_equal(one.state["scaffold.control"], two.state["scaffold.control"])
    states = []
    for name in ("serial", "processes"):
        with Store.open(tmp_path / name / "buffers.sqlite") as store:
            states.append([store.state(client, (9, 0)) for client in store.clients()])
    assert states[0] == states[1]
    assert all(b"online_ewc.precision" in state and b"scaffold.control" in state for state in states[0])


def test_a_run_with_methods_goes_on_after_an_interrupt_as_if_nothing_had_happened(tmp_path):
    changes = ALL | {
        "continual.methods": ["distillation", "fedcurv", "interpolation", "der_pp"],
        "continual.options": {},
    }
    settings = coreplay.Config.make(DIGITS, changes | {"engine.checkpoint_seconds": 0})
    things = prepare(settings)

    def stop(event):
        if (event.kind, event.period, event.round) == ("round", 1, 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coreplay.run(settings, tmp_path / "cut", prepared=things, observer=stop)
    coreplay.run(settings, tmp_path / "cut", prepared=things, resume=True)
    coreplay.run(settings, tmp_path / "whole", prepared=things)
    cut, whole = (RunFolder.open(tmp_path / name).checkpoint() for name in ("cut", "whole"))
    np.testing.assert_array_equal(cut.values, whole.values)


def rows(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_clients_that_have_only_a_buffer_take_part_if_asked(tmp_path):
    """Client b has data in the first period alone."""
    rng = np.random.default_rng(0)
    client = ["a"] * 24 + ["b"] * 12
    period = [0] * 12 + [1] * 12 + [0] * 12
    test = [k % 4 == 0 for k in range(36)]
    labels = [str(k) for k in rng.integers(3, size=36)]
    stream = FederatedStream(client, period, test, rng.random((36, 8, 8)), label=labels)
    counts = {}
    for name, asked in (("with", True), ("without", False)):
        given = DIGITS | {"stream": {"source": "given"}}
        settings = coreplay.Config.make(given, {"federated.buffer_only_clients": asked})
        coreplay.run(settings, tmp_path / name, stream=stream)
        counts[name] = [(row["clients"], row["samples"]) for row in rows(tmp_path / name, "rounds.jsonl")]
    assert counts["without"] == [(2, 18), (2, 18), (1, 15), (1, 15)]
    assert counts["with"] == [(2, 18), (2, 18), (2, 21), (2, 21)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"continual.methods": ["a_gem", "mega"]}, "'a_gem' and 'mega' each decide what a step trains on"),
        (
            {"continual.methods": ["a_gem"], "replay.mixing": "ratio"},
            "'replay.mixing' and 'a_gem' each decide what a step trains on",
        ),
        ({"continual.methods": ["der", "der_pp"]}, "'der' and 'der_pp' exclude each other"),
        ({"replay.retrieval": "mir"}, 'set replay.mixing = "ratio" \\(now "concatenate"\\)'),
        (
            {"continual.methods": ["ewc"], "continual.options": {"ewc": {"strength": -1.0}}},
            "'strength' of continual method 'ewc': got -1.0: must be at least 0",
        ),
        ({"replay.public": {"sorce": "digits"}}, "replay.public: unknown key 'sorce': did you mean 'source'"),
        ({"replay.public": {"options": {}}}, "names no source: add source ="),
        ({"continual.methods": ["l2", "l2"]}, "has a name twice"),
        ({"replay.public": {"source": "digit"}}, "did you mean 'digits'"),
        ({"continual.methods": ["distilation"]}, "did you mean 'distillation'"),
        (
            {"federated.algorithm": "feddyn", "federated.options": {"alpha": 0.0}},
            "'alpha' of algorithm 'feddyn': got 0.0: must be above 0",
        ),
    ],
)
def test_combinations_and_values_that_can_not_work_are_refused_at_once(changes, words):
    with pytest.raises(InputError, match=words):
        coreplay.Config.make(DIGITS, changes)


def test_more_stored_probabilities_than_pieces_are_refused_before_work(tmp_path):
    settings = coreplay.Config.make(TEXTS, {"continual.methods": ["der"], "continual.options": {"der": {"top_k": 500}}})
    with pytest.raises(
        InputError, match=r"'top_k' of continual method 'der' must be at most ...?, less than the .* pieces"
    ):
        coreplay.run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changes", [{"replay.quota": "class"}, {"replay.strategy": "class_balanced"}])
def test_classes_of_a_stream_without_labels_are_refused_before_work(changes, tmp_path):
    stream = coreplay.data.FederatedStream(["a", "a"], [0, 0], [False, True], ["hi there", "stop"])
    with pytest.raises(InputError, match=r"replay\.(quota|strategy) = 'class.*' needs labels, and the stream has none"):
        coreplay.run(coreplay.Config.make(TEXTS, changes), tmp_path / "run", stream=stream)
    assert not (tmp_path / "run").exists()


def test_public_samples_that_the_task_can_not_read_are_refused_before_work(tmp_path):
    settings = coreplay.Config.make(TEXTS, {"replay.public": {"source": "digits"}})
    with pytest.raises(InputError, match=r"replay\.public: the stream has texts, and source 'digits' gives arrays of"):
        coreplay.run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_runs_of_a_sweep_are_checked_one_by_one(tmp_path):
    top_k = {"strategy": "naive_uniform", "continual": {"der": {"top_k": 500}}}
    data = {"strategies": ["none", top_k], "run": {name: TEXTS[name] for name in TEXTS if name != "engine"}}
    status = SweepStatus(Sweep.make(data).runs)
    run_sweep(status, tmp_path, workers=1)
    ((name, problem),) = status.failures().items()
    assert "der" in name
    assert "'top_k' of continual method 'der' must be at most" in problem


@pytest.mark.parametrize("config", [{"seed": 1}, "run.toml"])
def test_what_is_no_configuration_is_refused(config, tmp_path):
    with pytest.raises(InputError, match=r"use Config\.load for a file, Config\.make for a dict"):
        coreplay.run(config, tmp_path / "run")


@pytest.mark.parametrize("method", ["distillation", "der", "der_pp"])
def test_a_task_without_logits_is_refused_before_work(method, tmp_path):
    task = coreplay.Task.of(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), lambda outputs, batch: outputs[:, 0].square()
    )
    settings = coreplay.Config.make(DIGITS | {"task": {"name": "given"}}, {"continual.methods": [method]})
    with pytest.raises(InputError, match=rf"continual method '{method}' needs outputs with one row of .* logits"):
        coreplay.run(settings, tmp_path / "run", task=task)
    assert not (tmp_path / "run").exists()


def test_projections_never_raise_the_reference_loss_to_first_order():
    """Whatever the gradients: the result has no negative product with any reference, and is the nearest such vector."""
    from coreplay.learning.continual.gem import projected

    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        gradient, reference = torch.randn(2, 30, generator=generator)
        found = projected(gradient, reference)
        assert float(found @ reference) >= -1e-5
        assert float((found - gradient).norm()) <= float(gradient.norm()) + 1e-5
