"""Continual methods, mixing and FedDyn against plain loops, federated on the serial engine."""

import numpy as np
import pytest
from tests.learning import reference

import coreplay
from coreplay.data import load
from coreplay.learning import FlatModel
from coreplay.replay import Store
from coreplay.runtime import RunFolder, prepare

DIGITS = {
    "stream": {"source": "digits", "options": {"num_clients": 3, "num_periods": 3}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {"rounds": 2, "batch_size": 8, "max_weight_ratio": 0},
    "replay": {"strategy": "naive_uniform", "budget": 6},
    "engine": {"name": "serial"},
}


@pytest.fixture(scope="module")
def things():
    return prepare(coreplay.Config.make(DIGITS))


def compared(things, tmp_path, method, hook, changes, tolerance=1e-5, public=None):
    """Return the library's last model as a plain vector, after comparing it with the reference's."""
    settings = coreplay.Config.make(DIGITS, changes)
    coreplay.run(settings, tmp_path / "run", prepared=things)
    flat = FlatModel(things.task.model(0))
    flat.load(RunFolder.open(tmp_path / "run").checkpoint().values)
    found = reference.flat(flat.parameters)
    expected = reference.flat(reference.Run(things, settings, method, hook, public).model.parameters())
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
    return found


@pytest.fixture(scope="module")
def plain(things, tmp_path_factory):
    return compared(things, tmp_path_factory.mktemp("plain"), reference.Method(), "fedavg", {})


@pytest.mark.parametrize(
    ("name", "method", "options"),
    [
        ("distillation", reference.Distillation, {"teacher": "period_start", "samples": "all", "temperature": 2.0}),
        ("distillation", reference.Distillation, {"teacher": "period_start", "samples": "kept"}),
        ("distillation", reference.Distillation, {"where": "better", "samples": "kept"}),
        ("distillation", reference.Distillation, {"where": "better", "teacher": "average"}),
        ("distillation", reference.Distillation, {"teacher": "both", "samples": "new", "decay": 0.6}),
        ("distillation", reference.Distillation, {"teacher": "average", "samples": "all", "decay": 0.6}),
        ("l2", reference.L2, {"strength": 0.3}),
        ("ewc", reference.EWC, {"strength": 3.0, "max_samples": 1000}),
        ("ewc", reference.EWC, {"strength": 1e5, "max_samples": 1000}),
        ("online_ewc", reference.OnlineEWC, {"strength": 3.0, "max_samples": 1000, "decay": 0.5}),
        ("fedcurv", reference.FedCurv, {"strength": 3.0, "max_samples": 1000}),
        ("a_gem", reference.AGEM, {}),
        ("gem", reference.GEM, {}),
        ("mega", reference.MEGA, {}),
        ("fed_a_gem", reference.FedAGEM, {}),
        ("interpolation", reference.Interpolation, {"weight": 0.6}),
        ("der", reference.DER, {"alpha": 0.3, "beta": 0.0}),
        ("der_pp", reference.DER, {"alpha": 0.3, "beta": 0.5}),
    ],
)
def test_a_continual_method_is_its_plain_loop(things, plain, tmp_path, name, method, options):
    usual = {"strength": 1.0, "temperature": 1.0, "decay": 0.99}
    usual |= {"teacher": "period_start", "samples": "all", "where": "all"}
    made = method(**usual | options)
    changes = {"continual.methods": [name], "continual.options": {name: options}}
    found = compared(things, tmp_path, made, name, changes)
    assert float((found - plain).abs().max()) > 1e-3, "the method changes something"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (reference.Ratio, {"mixing": "ratio", "kept_fraction": 0.25, "retrieval": "uniform"}),
        (reference.Ratio, {"mixing": "ratio", "kept_fraction": 0.5, "retrieval": "mir", "retrieval_candidates": 6}),
        (reference.Weight, {"mixing": "weight", "kept_weight": 2.5}),
        (reference.Weight, {"mixing": "weight", "kept_weight": 0.0, "max_kept_weight": 7.0}),
    ],
)
def test_mixing_is_its_plain_loop(things, plain, tmp_path, method, options):
    made = method(candidates=options.get("retrieval_candidates"), **options)
    changes = {f"replay.{name}": value for name, value in options.items()}
    found = compared(things, tmp_path, made, "replay.mixing", changes)
    assert float((found - plain).abs().max()) > 1e-3


def test_feddyn_is_its_plain_loop(things, plain, tmp_path):
    changes = {"federated.algorithm": "feddyn", "federated.options": {"alpha": 0.1}}
    found = compared(things, tmp_path, reference.FedDyn(alpha=0.1), "feddyn", changes, tolerance=2e-5)
    assert float((found - plain).abs().max()) > 1e-3


def test_public_samples_are_trained_on_by_every_client_and_never_kept(things, plain, tmp_path):
    """They do not count as samples of a client either: weights of clients are as without them."""
    options = {"num_clients": 1, "num_periods": 1, "seed": 5, "test": 0.9}
    public = load("digits", **options).all().replaced(arrived=-1)
    changes = {"replay.public": {"source": "digits", "options": options}}
    found = compared(things, tmp_path, reference.Method(), "fedavg", changes, public=public)
    assert float((found - plain).abs().max()) > 1e-3
    with Store.open(tmp_path / "run" / "buffers.sqlite") as store:
        kept = {item.key for client in store.clients() for item in store.load(client).items}
    assert kept
    assert not kept & {f"{number:016x}" for number in public.ids.tolist()}
