"""Tasks that are made of a module and a loss function, and runs on objects."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import coreplay
from coreplay.data import FederatedStream, load
from coreplay.errors import InputError
from coreplay.tasks import Metric, Task, evaluate, features, make

CONFIG = {
    "federated": {"rounds": 2, "clients_per_round": 2},
    "replay": {"budget": 3, "coordination_rounds": 1},
    "gradients": {"sketch_size": 32},
    "engine": {"name": "serial"},
}


def loss(outputs, batch):
    return nn.functional.cross_entropy(outputs, batch["label"], reduction="none")


def with_channel(samples):
    images = np.ascontiguousarray(samples.content, dtype=np.float32)[:, None]
    return {"x": torch.from_numpy(images), "label": torch.tensor(samples.label)}


@pytest.fixture(scope="module")
def stream():
    return load("digits", num_clients=3, num_periods=2)


def files(folder):
    return {name: (folder / f"{name}.jsonl").read_text() for name in ("metrics", "rounds", "coordination", "buffers")}


def test_a_task_of_a_module_gives_what_the_registered_task_gives(stream, tmp_path):
    registered = make("image_classification", stream, channels=2)
    task = Task.of(registered.model(0), loss, collate=with_channel, metric="accuracy")
    coreplay.run(coreplay.Config.make(CONFIG), tmp_path / "own", stream=stream, task=task)
    named = {
        "stream": {"source": "digits", "options": {"num_clients": 3, "num_periods": 2}},
        "task": {"name": "image_classification", "options": {"channels": 2}},
    }
    coreplay.run(coreplay.Config.make(CONFIG | named), tmp_path / "named")
    assert files(tmp_path / "own") == files(tmp_path / "named")


def test_a_run_on_objects_is_resumed_with_the_objects(stream, tmp_path):
    task = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), loss)
    config = coreplay.Config.make(CONFIG)
    coreplay.run(config, tmp_path / "whole", stream=stream, task=task)
    seen = []

    def stop(event):
        seen.append(event.kind)
        if event.kind == "selected":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coreplay.run(config, tmp_path / "run", stream=stream, task=task, observer=stop)
    with pytest.raises(InputError, match=r"the stream of this run is an object .* pass it as stream="):
        coreplay.run(config, tmp_path / "run", resume=True)
    coreplay.run(config, tmp_path / "run", stream=stream, task=task, resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_function_that_makes_the_model_depends_on_the_seed(stream):
    task = Task.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), loss)
    one, again, other = task.model(1)[1].weight, task.model(1)[1].weight, task.model(2)[1].weight
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    fixed = Task.of(module, loss)
    made = fixed.model(1)
    assert made is not module
    assert torch.equal(made[1].weight, fixed.model(2)[1].weight)
    assert evaluate(fixed, made, stream.of_period(0, "test")) > 0


def test_the_parts_of_a_task_are_used(stream):
    def linear(samples):
        return {"pixels": torch.from_numpy(np.float32(samples.content)).flatten(1)}

    class Mean(nn.Linear):
        def forward(self, batch):
            return super().forward(batch["pixels"]).squeeze(1)

    metric = Metric("squared error", lower_is_better=True)
    task = Task.of(
        Mean(64, 1),
        lambda outputs, batch: (outputs - batch["pixels"].mean(dim=1)).square(),
        collate=linear,
        metric=metric,
        features=lambda model, batch: batch["pixels"],
    )
    assert task.metric is metric
    samples = stream.of_period(0)[:5]
    np.testing.assert_array_equal(features(task, task.model(0), samples), np.float32(samples.content).reshape(5, 64))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": 3}, "model must be a function or a module: got 3"),
        ({"loss": "mse"}, "loss must be a function or a module: got 'mse'"),
        ({"metric": "f1"}, "metric must be a Metric or 'accuracy': got 'f1'"),
    ],
)
def test_wrong_parts_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        Task.of(**{"model": nn.Linear(2, 2), "loss": loss} | given)


def test_a_loss_that_is_not_per_sample_and_texts_without_collate_are_refused(stream):
    task = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), lambda outputs, batch: outputs.mean())
    with pytest.raises(InputError, match=r"one number per sample, shape \(4,\): got shape \(\); .* reduction='none'"):
        task.per_sample_loss(task.model(0), task.collate(stream.of_period(0)[:4]))
    texts = FederatedStream(["a"], [0], [False], ["x"])
    with pytest.raises(InputError, match="needs collate= for texts"):
        task.collate(texts.all())
    with pytest.raises(InputError, match="model must return a torch module: got 3"):
        Task.of(lambda: 3, loss).model(0)


def test_what_an_engine_can_not_use_is_refused_before_any_work(stream, tmp_path):
    task = Task.of(nn.Linear(64, 10), lambda outputs, batch: outputs)
    pickle.dumps(Task.of(nn.Linear(64, 10), loss))
    for engine, words in (("processes", "can't be sent to worker processes"), ("flower", "can't be used with engine")):
        config = coreplay.Config.make(CONFIG | {"engine": {"name": engine}})
        with pytest.raises(InputError, match=words):
            coreplay.run(config, tmp_path / "run", stream=stream, task=task)
    with pytest.raises(InputError, match="task must be a Task: got Linear"):
        coreplay.run(coreplay.Config.make(CONFIG), tmp_path / "run", task=nn.Linear(2, 2))
    assert not (tmp_path / "run").exists()


def test_rows_of_outputs_are_the_masked_positions():
    texts = load("synthetic", num_clients=2, num_periods=1, samples=10)
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "vocabulary_size": 200}
    task = make("masked_lm", texts, **sizes)
    model, batch = task.model(0).eval(), task.collate(texts.of_period(0)[:9], 1)
    outputs, rows = task.outputs(model, batch), task.output_rows(batch)
    masked = batch["targets"] != -100
    assert not masked.all()
    assert outputs.shape == (int(masked.sum()), len(task.vocabulary)) == (len(rows), len(task.vocabulary))
    terms = nn.functional.cross_entropy(outputs, batch["targets"][masked], reduction="none")
    summed = torch.zeros(9).index_add(0, rows, terms)
    torch.testing.assert_close(summed, task.per_sample_loss(model, batch))
    assert make("image_classification", load("digits")).output_rows({}) is None
