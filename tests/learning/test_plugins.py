"""Continual methods and weighted replay as one file each outside the package, against plain references."""

from pathlib import Path

import numpy as np
import pytest
import torch

import coreplay
from coreplay.codec import decode
from coreplay.errors import InputError
from coreplay.learning import FlatModel, Methods, Turn
from coreplay.learning.training import contexts
from coreplay.plugins import load_plugins
from coreplay.replay import Store
from coreplay.replay.contents import samples_of
from coreplay.runtime import RunFolder, prepare

HERE = Path(__file__).parent / "plugins"
DIGITS = {
    "stream": {"source": "digits", "options": {"num_clients": 3, "num_periods": 3}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {"rounds": 2},
    "replay": {"strategy": "naive_uniform", "budget": 5},
    "engine": {"name": "serial"},
}


def config(plugin, **changes):
    given = DIGITS | {"plugins": [str(HERE / f"{plugin}.py")]}
    return coreplay.Config.make(given, {name.replace("__", "."): value for name, value in changes.items()})


def context(task, pool, model, method="fedavg", continual=None, state=None, period=1):
    methods = Methods("fedavg", {}, continual)
    settings = coreplay.Config.make(DIGITS).federated
    return methods, contexts(methods, model, task, pool, settings, Turn(0, "c", period, 0), state=state)


def plain_gradient(task, flat, samples):
    """Return the gradient of the mean loss by plain autograd, in the layout of the flat model."""
    flat.model.eval()
    batch = task.collate(samples)
    gradients = torch.autograd.grad(task.per_sample_loss(flat.model, batch).mean(), flat.parameters)
    for parameter, gradient in zip(flat.parameters, gradients, strict=True):
        parameter.grad = gradient
    found = flat.gradient()
    flat.model.zero_grad()
    return found


def test_ewc_keeps_the_fisher_information_and_pulls_by_it(tmp_path):
    settings = config("ewc", continual__methods=["own_ewc"], continual__options={"own_ewc": {"strength": 10.0}})
    things = prepare(settings)
    folder = tmp_path / "run"

    def stop(event):
        if event.kind == "selected":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coreplay.run(settings, folder, prepared=things, observer=stop)
    values = RunFolder.open(folder).checkpoint().values
    client = things.stream.clients[0]
    flat = FlatModel(things.task.model(0))
    flat.load(values)
    samples = things.stream.samples(client, 0)
    squares = [plain_gradient(things.task, flat, samples[[k]]).square() for k in range(len(samples))]
    with Store.open(folder / "buffers.sqlite") as store:
        from safetensors.numpy import load

        state = load(store.state(client, (1, 0)))
    np.testing.assert_allclose(state["own_ewc.fisher"], torch.stack(squares).mean(dim=0), rtol=1e-4, atol=1e-8)
    np.testing.assert_array_equal(state["own_ewc.anchor"], values[: flat.trainable])

    coreplay.run(settings, folder, resume=True, prepared=things)
    coreplay.run(coreplay.Config.make(DIGITS), tmp_path / "free", prepared=things)
    none = config("ewc", continual__methods=["own_ewc"], continual__options={"own_ewc": {"strength": 0.0}})
    coreplay.run(none, tmp_path / "none", prepared=things)
    pulled, free, none = ((tmp_path / name / "rounds.jsonl").read_text() for name in ("run", "free", "none"))
    assert pulled != free == none

    load_plugins([str(HERE / "ewc.py")])
    methods, seen = context(things.task, samples, flat, continual={"own_ewc": {"strength": 2.0}}, state=state)
    flat.values += 0.1
    gradient = torch.ones(flat.trainable)
    found = methods.hooks["own_ewc"].gradient(seen["own_ewc"], gradient, None)
    expected = 1 + 2.0 * state["own_ewc.fisher"] * (flat.values[: flat.trainable].numpy() - state["own_ewc.anchor"])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_der_keeps_outputs_with_the_samples_and_trains_towards_them(tmp_path):
    settings = config("der", continual__methods=["own_der"])
    things = prepare(settings)
    coreplay.run(settings, tmp_path / "run", prepared=things)
    client = things.stream.clients[0]
    with Store.open(tmp_path / "run/buffers.sqlite") as store:
        kept = samples_of(store.load(client).items, things.stream.samples(client, 0))
    assert kept.extras["logits"].shape == (5, 10)
    assert np.isfinite(kept.extras["logits"]).all()
    coreplay.run(coreplay.Config.make(DIGITS), tmp_path / "free", prepared=things)
    found, free = ((tmp_path / name / "rounds.jsonl").read_text().splitlines() for name in ("run", "free"))
    assert found[:2] == free[:2], "nothing is kept in the first period"
    assert all(one != other for one, other in zip(found[3:], free[3:], strict=True))


def test_a_gem_projects_on_the_gradient_of_the_buffer(tmp_path):
    settings = config("agem", continual__methods=["own_a_gem"])
    things = prepare(settings)
    coreplay.run(settings, tmp_path / "run", prepared=things)
    client, flat = things.stream.clients[0], FlatModel(things.task.model(0))
    pool = things.stream.samples(client, 0)[:20]
    arrived = np.where(np.arange(20) < 8, 0, 1)
    methods, seen = context(things.task, pool.replaced(arrived=arrived), flat, continual={"own_a_gem": {}})
    reference = plain_gradient(things.task, flat, pool[:8])
    for gradient in (reference.clone(), -reference, torch.randn(flat.trainable)):
        found = methods.hooks["own_a_gem"].gradient(seen["own_a_gem"], gradient, None)
        assert float(found @ reference) >= -1e-5
        if float(gradient @ reference) >= 0:
            assert torch.equal(found, gradient)


def test_weights_of_a_selector_are_kept_and_used(tmp_path):
    settings = config("weighted_replay", replay__strategy="weighted_uniform", replay__options={"cap": 7.0})
    things = prepare(settings)
    found = coreplay.run(settings, tmp_path / "run", prepared=things)
    client = things.stream.clients[0]
    offered = things.stream.counts("train")[0, :2].sum()
    with Store.open(tmp_path / "run/buffers.sqlite") as store:
        weights = [decode(item.payload)["weight"] for item in store.load(client).items]
    assert weights == pytest.approx([min(7.0, offered / 5)] * 5)
    one = config("weighted_replay", replay__strategy="weighted_uniform", replay__options={"cap": 1.0})
    assert coreplay.run(one, tmp_path / "one", prepared=things).metrics != found.metrics


FAULTY = '''
from dataclasses import dataclass
import numpy as np
import torch
import coreplay
from coreplay.learning import LearningHook


@coreplay.continual_method("faulty")
@dataclass(frozen=True, kw_only=True)
class Faulty(LearningHook):
    """Do one thing wrong."""

    fault: str = ""
    period_sums = ("vector",)

    def loss(self, ctx, step):
        faults = {"loss shape": torch.ones(2), "loss NaN": torch.tensor(float("nan"))}
        return faults.get(self.fault)

    def gradient(self, ctx, gradient, step):
        faults = {"gradient shape": gradient[:-1], "gradient NaN": gradient * float("nan"), "gradient none": None}
        return faults.get(self.fault, gradient)

    def finish_round(self, ctx, change):
        faults = {"state text": {"a": np.array(["x"])}, "state NaN": {"a": np.array([np.nan])}, "state list": [1]}
        return {}, faults.get(self.fault, {})

    def finish_period(self, ctx):
        if self.fault == "no pair":
            return {}
        faults = {"sum shape": {"vector": torch.ones(3)}, "sum missing": {}}
        return faults.get(self.fault, {"vector": torch.ones_like(ctx.start)}), {}

    def keep(self, ctx, kept):
        return kept[1:] if self.fault == "keep fewer" else kept
'''


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no pair", "must return a pair, \\(sums for the server, new state\\): got {}"),
        ("loss shape", "loss must return a tensor with one number: got shape \\(2,\\)"),
        ("loss NaN", "loss returned NaN or infinity"),
        ("gradient shape", "gradient must return shape"),
        ("gradient NaN", "gradient returned NaN or infinity"),
        ("gradient none", "gradient must return shape .*: got NoneType"),
        ("state text", "state 'a' can't be stored: it has dtype <U1"),
        ("state NaN", "state 'a' has NaN or infinity"),
        ("state list", "the state must be arrays by name: got list"),
        ("sum shape", "sum 'vector' must have shape"),
        ("sum missing", "must return the sums \\['vector'\\]: got \\[\\]"),
        ("keep fewer", "keep must return the samples that it got"),
    ],
)
def test_a_faulty_hook_is_named_with_client_and_period_and_the_run_can_be_resumed(fault, words, tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    given = DIGITS | {"plugins": [str(tmp_path / "faulty.py")], "continual": {"methods": ["faulty"]}}
    given = given | {"federated": {"rounds": 1}}
    settings = coreplay.Config.make(given, {"continual.options": {"faulty": {"fault": fault}}})
    with pytest.raises(InputError, match=rf"'faulty' at client 'client\d' in period 0, round \d: {words}"):
        coreplay.run(settings, tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace(f'"{fault}"', '""'))
    assert len(coreplay.run(settings, tmp_path / "run", resume=True).metrics["accuracy"]) == 3
