"""Flat models and training at one client, against plain torch."""

import numpy as np
import pytest
import torch
from torch import nn

from coreplay.data import load
from coreplay.errors import InputError
from coreplay.learning import FlatModel, Methods, Turn, train
from coreplay.replay import Store
from coreplay.runtime import ClientRuntime, Config
from coreplay.seeding import generator
from coreplay.tasks import Task, batches, make

SMALL = {
    "num_layers": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 32,
    "vocabulary_size": 200,
    "max_length": 16,
}


@pytest.fixture(scope="module")
def stream():
    return load("synthetic", num_clients=2, num_periods=1, samples=12)


@pytest.fixture(scope="module")
def task(stream):
    return make("masked_lm", stream, **SMALL)


def test_a_flat_model_computes_what_the_model_computed(task, stream):
    plain, flat = task.model(0), FlatModel(task.model(0))
    batch = task.collate(stream.of_period(0))
    plain.eval(), flat.model.eval()
    torch.testing.assert_close(task.per_sample_loss(flat.model, batch), task.per_sample_loss(plain, batch))
    assert sum(p.numel() for p in flat.parameters) == sum(p.numel() for p in plain.parameters())


def test_tied_weights_stay_tied(task):
    flat = FlatModel(task.model(0))
    flat.load(np.arange(flat.size, dtype=np.float32))
    words, decoder = flat.model.get_input_embeddings().weight, flat.model.get_output_embeddings().weight
    assert words.data_ptr() == decoder.data_ptr()


def test_buffers_are_part_of_the_vector_and_whole_numbers_are_not():
    flat = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    before = flat.values.clone()
    flat.model(torch.randn(8, 3))
    assert not torch.equal(before, flat.values), "the running mean moved, and it is in the vector"
    assert flat.model[1].num_batches_tracked == 1


def test_frozen_parameters_are_left_out_and_kept():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    kept = model[0].weight.clone()
    flat = FlatModel(model)
    flat.load(np.zeros(flat.size, np.float32))
    assert torch.equal(model[0].weight, kept)
    assert not model[1].weight.any()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 2)), "mixes number types"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
    ],
)
def test_models_that_can_not_be_flat_are_refused(model, words):
    with pytest.raises(InputError, match=words):
        FlatModel(model)


def test_a_vector_of_another_model_is_refused():
    with pytest.raises(InputError, match="is it another model's"):
        FlatModel(nn.Linear(2, 2)).load(np.zeros(7, np.float32))


def reference(task, samples, config, client, round, mu=0.0):
    """Train with plain torch, parameter by parameter, without the flat vector."""
    rng = generator(0, client, 0, "training", round)
    order, dropout = (int(rng.integers(2**62)) for _ in range(2))
    model = task.model(0)
    start = [p.detach().clone() for p in model.parameters()]
    kind = torch.optim.SGD if config.optimizer == "sgd" else torch.optim.AdamW
    more = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    optimizer = kind(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, **more)
    model.train()
    torch.manual_seed(dropout)
    first = round * config.epochs
    for epoch in range(first, first + config.epochs):
        for batch in batches(task, samples, config.batch_size, seed=order, epoch=epoch):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            if config.max_grad_norm:
                nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            for p, origin in zip(model.parameters(), start, strict=True):
                if p.grad is not None:
                    p.grad += mu * (p.detach() - origin)
            optimizer.step()
    return model


def test_training_masks_depend_on_the_seed_of_the_run(task, stream, monkeypatch):
    samples, shown = stream.of_period(0)[:1], []
    collate = task.collate
    monkeypatch.setattr(task, "collate", lambda *given: shown.append(collate(*given)) or shown[-1])
    settings = Config.make({"federated": {"epochs": 12}}).federated
    for seed in (0, 0, 1):
        flat = FlatModel(task.model(0))
        train(flat, task, samples, Methods("fedavg", {}), settings, Turn(seed, "a", 0, 0))
    masks = [batch["input_ids"].tolist() for batch in shown]
    assert masks[:12] == masks[12:24]
    assert masks[:12] != masks[24:]


def test_the_gradients_of_choices_depend_on_the_seed_of_the_run(task, stream, tmp_path):
    start = FlatModel(task.model(0)).numpy().copy()
    client, grams = stream.clients[0], []
    for number, seed in enumerate((0, 0, 1)):
        settings = Config.make({"seed": seed, "gradients": {"backend": "factored"}})
        with Store.open(tmp_path / f"{number}.sqlite") as store:
            runtime = ClientRuntime(settings, stream, task, FlatModel(task.model(0)), store, tmp_path / str(number))
            grams.append(runtime.gradients(client, runtime.pool(client, 0), start).gram())
    np.testing.assert_array_equal(grams[0], grams[1])
    assert abs(grams[0] - grams[2]).max() > 0.01


@pytest.mark.parametrize(
    ("changes", "algorithm", "mu"),
    [
        ({}, "fedavg", 0.0),
        (
            {"epochs": 2, "momentum": 0.9, "weight_decay": 0.01, "max_grad_norm": 0, "learning_rate": 0.01},
            "fedavg",
            0.0,
        ),
        ({"optimizer": "adamw", "learning_rate": 0.003, "max_grad_norm": 0.5}, "fedavg", 0.0),
        ({"epochs": 2}, "fedprox", 0.3),
    ],
)
def test_training_equals_plain_torch(task, stream, changes, algorithm, mu):
    config = Config.make({"federated": {"batch_size": 4} | changes}).federated
    samples = stream.samples(stream.clients[0], 0)
    flat = FlatModel(task.model(0))
    made = Methods(algorithm, {"mu": mu} if mu else {})
    told = train(flat, task, samples, made, config, Turn(0, "c", 0, 1))
    expected = reference(task, samples, config, "c", 1, mu)
    assert told.samples == len(samples)
    assert told.loss.weight > 0
    for mine, theirs in zip(flat.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


class Normed(Task):
    """Images through a batch norm."""

    def model(self, seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    def collate(self, samples, view=None):
        images = torch.from_numpy(np.float32(samples.content)).flatten(1)
        return {"image": images, "label": torch.from_numpy(samples.label.copy())}

    def outputs(self, model, batch):
        return model(batch["image"])

    def losses(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch["label"], reduction="none")


@pytest.mark.parametrize("count", [1, 5, 9])
def test_a_batch_of_one_sample_is_normalised_by_the_running_statistics(count):
    """Batch norm can't train on one sample; the last batch of 5 or 9 samples has one."""
    task, samples = Normed(), load("digits", num_clients=1, num_periods=1).of_period(0)[:count]
    config = Config.make({"federated": {"batch_size": 4, "max_grad_norm": 0}}).federated
    flat, model = FlatModel(task.model(0)), task.model(0)
    train(flat, task, samples, Methods("fedavg", {}), config, Turn(0, "c", 0, 0))
    order = int(generator(0, "c", 0, "training", 0).integers(2**62))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    for batch in batches(task, samples, 4, seed=order, epoch=0):
        model[1].train(len(batch["label"]) > 1)
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    assert flat.model[1].training
    for mine, theirs in zip(flat.model.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_batch_norms_that_the_model_keeps_frozen_stay_frozen():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    class Own(Normed):
        def model(self, seed):
            return Frozen(*super().model(seed))

    task, samples = Own(), load("digits", num_clients=1, num_periods=1).of_period(0)[:5]
    flat = FlatModel(task.model(0))
    config = Config.make({"federated": {"batch_size": 4}}).federated
    train(flat, task, samples, Methods("fedavg", {}), config, Turn(0, "c", 0, 0))
    assert not flat.model[1].training
    assert not flat.model[1].running_mean.any()


def test_random_states_and_repeats(task, stream):
    samples, config = stream.samples(stream.clients[0], 0), Config().federated
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    values = []
    for round in (0, 0, 1):
        flat = FlatModel(task.model(0))
        train(flat, task, samples, Methods("fedavg", {}), config, Turn(0, "c", 0, round))
        values.append(flat.numpy().copy())
    assert torch.equal(state, torch.random.get_rng_state())
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])


def test_divergence_is_named(task, stream):
    config = Config.make({"federated": {"learning_rate": 1e30, "max_grad_norm": 0, "epochs": 5}}).federated
    samples, flat, made = stream.samples(stream.clients[0], 0), FlatModel(task.model(0)), Methods("fedavg", {})
    with pytest.raises(InputError, match=r"client 'c'.*lower federated\.learning_rate"):
        train(flat, task, samples, made, config, Turn(0, "c", 0, 0))
