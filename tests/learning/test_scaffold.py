"""SCAFFOLD against a plain loop, on every engine of this machine, and after a resume."""

import numpy as np
import pytest
import torch

import coreplay
from coreplay.errors import InputError
from coreplay.learning import FlatModel
from coreplay.replay import Store
from coreplay.runtime import Run, RunFolder, prepare
from coreplay.seeding import generator
from coreplay.tasks import batches

SCAFFOLD = {
    "stream": {"source": "digits", "options": {"num_clients": 4, "num_periods": 2}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {
        "algorithm": "scaffold",
        "options": {"server_lr": 0.8},
        "rounds": 3,
        "clients_per_round": 3,
        "max_weight_ratio": 0,
    },
    "replay": {"strategy": "none"},
    "engine": {"name": "serial", "checkpoint_seconds": 0},
}


def config(**changes):
    return coreplay.Config.make(SCAFFOLD, {name.replace("__", "."): value for name, value in changes.items()})


@pytest.fixture(scope="module")
def things():
    return prepare(config())


@pytest.fixture(scope="module")
def whole(things, tmp_path_factory):
    """Return the folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("scaffold") / "run"
    coreplay.run(config(), folder, prepared=things)
    return folder


def plain(things, settings):
    """Return the model and the control variates, by loops over plain torch tensors."""
    task, stream, options = things.task, things.stream, settings.federated
    counts = stream.counts("train")
    model = [p.detach().double() for p in task.model(settings.seed).parameters()]
    control = [torch.zeros_like(p) for p in model]
    own = {client: [torch.zeros_like(p) for p in model] for client in stream.clients}
    for period in range(stream.periods):
        for round in range(options.rounds):
            able = np.flatnonzero(counts[:, period])
            rng = generator(settings.seed, period, "clients", round)
            sampled = np.sort(rng.choice(able, options.clients_per_round, replace=False))
            weight, moved = 0, [torch.zeros_like(p) for p in model]
            shifted = [torch.zeros_like(p) for p in model]
            for number in sampled:
                client = stream.clients[number]
                samples = stream.samples(client, period)
                local = task.model(settings.seed).double()
                with torch.no_grad():
                    for p, value in zip(local.parameters(), model, strict=True):
                        p.copy_(value)
                seed = int(generator(settings.seed, client, period, "training", round).integers(2**62))
                steps, epoch = 0, period * options.rounds + round
                for given in batches(task, samples, options.batch_size, seed=seed, epoch=epoch):
                    batch = given | {"image": given["image"].double()}
                    local.zero_grad()
                    task.loss(local, batch).backward()
                    torch.nn.utils.clip_grad_norm_(local.parameters(), options.max_grad_norm)
                    with torch.no_grad():
                        for p, mine, common in zip(local.parameters(), own[client], control, strict=True):
                            p.sub_(options.learning_rate * (p.grad - mine + common))
                    steps += 1
                change = [p.detach() - value for p, value in zip(local.parameters(), model, strict=True)]
                new = [
                    mine - common - delta / (steps * options.learning_rate)
                    for mine, common, delta in zip(own[client], control, change, strict=True)
                ]
                for k in range(len(model)):
                    moved[k] += len(samples) * change[k]
                    shifted[k] += len(samples) * (new[k] - own[client][k])
                own[client] = new
                weight += len(samples)
            total = int(counts[:, period].sum())
            model = [p + 0.8 * change / weight for p, change in zip(model, moved, strict=True)]
            control = [c + shift / total for c, shift in zip(control, shifted, strict=True)]
    return model, control, own


def test_scaffold_equals_a_plain_loop(things, whole):
    checkpoint = RunFolder.open(whole).checkpoint()
    model, control, own = plain(things, config())
    flat = FlatModel(things.task.model(0))

    def vector(tensors):
        for parameter, tensor in zip(flat.parameters, tensors, strict=True):
            parameter.grad = tensor.float()
        return flat.gradient().numpy()

    np.testing.assert_allclose(checkpoint.values, vector(model), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(checkpoint.state["scaffold.control"], vector(control), rtol=1e-3, atol=1e-5)
    from safetensors.numpy import load

    with Store.open(whole / "buffers.sqlite") as store:
        for client in things.stream.clients:
            found = load(store.state(client, (9, 0)))["scaffold.control"]
            np.testing.assert_allclose(found, vector(own[client]), rtol=1e-3, atol=1e-5)


def test_worker_processes_give_the_same_bits(things, whole, tmp_path):
    coreplay.run(config(engine__name="processes", engine__workers=2), tmp_path / "processes", prepared=things)
    serial, processes = (RunFolder.open(path).checkpoint() for path in (whole, tmp_path / "processes"))
    np.testing.assert_array_equal(serial.values, processes.values)
    np.testing.assert_array_equal(serial.state["scaffold.control"], processes.state["scaffold.control"])


@pytest.mark.parametrize("seconds", [0, 1000])
@pytest.mark.parametrize("when", [(0, 1), (1, 2)])
def test_a_resumed_run_goes_back_to_the_states_of_its_checkpoint(when, seconds, things, whole, tmp_path):
    """With rare checkpoints, clients have trained further than the model that the run goes on with."""
    settings = config(engine__checkpoint_seconds=seconds)

    def stop(event):
        if event.kind == "round" and (event.period, event.round) == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coreplay.run(settings, tmp_path / "run", prepared=things, observer=stop)
    resumed = coreplay.run(settings, tmp_path / "run", resume=True, prepared=things)
    assert resumed.metrics == Run.load(whole).metrics
    one, two = (RunFolder.open(path).checkpoint().values for path in (whole, tmp_path / "run"))
    np.testing.assert_array_equal(one, two)


def test_a_run_does_not_go_on_without_the_states_of_its_clients(things, tmp_path):
    def stop(event):
        if event.kind == "round" and event.period == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coreplay.run(config(), tmp_path / "run", prepared=things, observer=stop)
    (tmp_path / "run/buffers.sqlite").unlink()
    with pytest.raises(InputError, match="is missing"):
        coreplay.run(config(), tmp_path / "run", resume=True, prepared=things)


def test_other_optimizers_are_refused_before_any_work():
    with pytest.raises(InputError, match="needs plain SGD"):
        config(federated__optimizer="adamw")
    with pytest.raises(InputError, match="needs plain SGD"):
        config(federated__momentum=0.9)
