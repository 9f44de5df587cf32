"""Classification, a task of one's own, and the example."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from coreplay.data import FederatedStream, load
from coreplay.errors import InputError
from coreplay.gradients import gradient_matrix
from coreplay.tasks import Task, batches, evaluate, features, make, tasks
from coreplay.tasks import task as named

ROOT = Path(__file__).parents[2]


def trained(task, samples, epochs, rate):
    model = task.model(0)
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for epoch in range(epochs):
        for batch in batches(task, samples, 32, seed=0, epoch=epoch):
            optimiser.zero_grad()
            task.loss(model, batch).backward()
            optimiser.step()
    return model


def check_scores(task, model, samples):
    """Accuracy counts right answers, and each sample stands alone."""
    batch = task.collate(samples)
    model.eval()
    losses = task.per_sample_loss(model, batch).double()
    assert losses.shape == (len(samples),)
    for k in range(3):
        alone = task.per_sample_loss(model, task.collate(samples[[k]]))
        assert alone.item() == pytest.approx(losses[k].item(), rel=1e-3, abs=1e-4)
    assert evaluate(task, model, samples) == pytest.approx(
        task.metric_terms(task.outputs(model, batch), batch).mean().item()
    )
    few = {name: tensor[:12] for name, tensor in batch.items()}
    found, promised = (gradient_matrix(model, task.per_sample_loss, few, batch_first=it).gram() for it in (False, True))
    assert task.batch_first == (found == promised).all()


def test_digits_are_learned_and_rotation_hurts():
    stream = load("digits", num_periods=4, degrees=90, seed=0)
    task = make("image_classification", stream)
    model = trained(task, stream.of_period(0), 15, 3e-3)
    check_scores(task, model, stream.of_period(0, "test"))
    first, last = (evaluate(task, model, stream.of_period(t, "test")) for t in (0, 3))
    assert first > 0.85
    assert last < first - 0.3
    assert (task.metric.name, task.metric.lower_is_better) == ("accuracy", False)


def test_intents_are_learned():
    stream = load("synthetic", num_clients=20, num_periods=2, new_intents=0, alpha=0.05, seed=0)
    small = {
        "num_layers": 1,
        "hidden_size": 48,
        "num_heads": 2,
        "intermediate_size": 64,
        "vocabulary_size": 800,
        "dropout": 0.0,
    }
    task = make("text_classification", stream, **small)
    model = trained(task, stream.of_period(0), 40, 3e-3)
    check_scores(task, model, stream.of_period(0, "test"))
    majority = np.bincount(stream.of_period(0).label).max() / len(stream.of_period(0))
    assert evaluate(task, model, stream.of_period(0, "test")) > max(0.3, 3 * majority)


def test_an_encoder_for_classification_comes_from_a_folder(tmp_path):
    stream = load("synthetic", num_clients=4, num_periods=1)
    small = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "vocabulary_size": 300}
    task = make("text_classification", stream, **small)
    task.model(1).save_pretrained(tmp_path)
    task.vocabulary.save(tmp_path)
    again = make("text_classification", stream, pretrained=str(tmp_path))
    samples = stream.of_period(0)
    assert evaluate(again, again.model(5), samples) == evaluate(task, task.model(1), samples)


def test_streams_that_do_not_fit_are_refused():
    bare = FederatedStream(["a"], [0], [False], ["x"])
    with pytest.raises(InputError, match="needs a stream with labels"):
        make("text_classification", bare)
    with pytest.raises(InputError, match="needs a stream of grey images"):
        make("image_classification", bare)
    with pytest.raises(InputError, match="channels"):
        make("image_classification", load("digits"), channels=0)
    with pytest.raises(InputError, match="unknown task 'masked': "):
        make("masked", bare)
    half = FederatedStream(["a", "a"], [0, 0], [False] * 2, ["x y", "y"], ["l", None])
    with pytest.raises(InputError, match="1 of 2 samples have no label"):
        make("text_classification", half).collate(half.all())


def test_features_are_what_goes_into_the_head():
    images = load("digits", num_periods=1)
    task = make("image_classification", images, channels=2)
    model, samples = task.model(0), images.of_period(0)[:5]
    found = features(task, model, samples, size=2)
    assert found.shape == (5, 64)
    with torch.no_grad():
        expected = model[5](torch.from_numpy(found))
        torch.testing.assert_close(model(task.collate(samples)["image"]), expected)
    texts = load("synthetic", num_clients=4, num_periods=1)
    small = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "vocabulary_size": 300}
    task = make("text_classification", texts, **small)
    model, samples = task.model(0), texts.of_period(0)[:5]
    found = features(task, model, samples, size=2)
    assert model.training
    with torch.no_grad():
        batch = task.collate(samples)
        expected = model.eval()(**{name: batch[name] for name in batch if name != "label"}).logits
        torch.testing.assert_close(model.classifier(torch.from_numpy(found)), expected)


def test_a_task_without_init_gets_a_name_by_the_decorator():
    class Brightness(Task):
        """Guess how bright an image is."""

        def model(self, seed):
            return torch.nn.Linear(64, 1)

        def collate(self, samples, view=None):
            return {"image": torch.from_numpy(np.float32(samples.content)).flatten(1)}

        def outputs(self, model, batch):
            return model(batch["image"]).squeeze(1)

        def losses(self, outputs, batch):
            return (outputs - batch["image"].mean(dim=1)).square()

    named("brightness_for_test")(Brightness)
    stream = load("digits", num_periods=2)
    made = make("brightness_for_test", stream)
    assert isinstance(made, Brightness)
    assert evaluate(made, made.model(0), stream.of_period(0, "test")) > 0
    assert isinstance(Brightness(), Brightness)
    with pytest.raises(InputError, match="unknown option 'depth' of task 'brightness_for_test'"):
        make("brightness_for_test", stream, depth=2)


def test_every_task_describes_itself():
    assert all(len(text) > 20 for text in tasks().values())


def test_the_example_of_an_own_task_learns_and_is_short(capsys):
    path = ROOT / "examples" / "own_task.py"
    runpy.run_path(str(path), run_name="__main__")
    before, after = (float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines())
    assert after < before / 4
    code = path.read_text().partition("class ")[2].partition("if __name__")[0]
    assert len(code.splitlines()) <= 30
