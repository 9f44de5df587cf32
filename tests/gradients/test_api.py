"""What a user meets: errors that say what to do, and a model left as it was."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import coreplay
from coreplay import InputError, gradient_matrix


def cross_entropy(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def classifier():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def pool(n=5):
    return torch.randn(n, 4), torch.arange(n) % 3


def rejects(match, loss=cross_entropy, batch=None, model=None, **options):
    with pytest.raises(InputError, match=match):
        gradient_matrix(model or classifier(), loss, batch or pool(), **options)


BACKENDS = ["factored", "dense", "sketch"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_must_be_one_a_sample(backend):
    rejects(
        r"shape \(5,\) for this batch of 5: got shape \(\); use reduction='none'",
        lambda m, b: cross_entropy(m, b).mean(),
        backend=backend,
    )
    rejects(r"got shape \(\d, 1\)", lambda m, b: cross_entropy(m, b)[:, None], backend=backend)
    rejects(r"got shape \(\d,\)", lambda m, b: cross_entropy(m, b).repeat(2), backend=backend)
    rejects("got float", lambda m, b: float(cross_entropy(m, b).detach().sum()), backend=backend)
    rejects("got torch.int64", lambda m, b: b[1], backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_without_any_gradient_is_refused(backend):
    message = "per_sample_loss must depend on the selected parameters.*detach"
    rejects(message, lambda m, b: cross_entropy(m, b).detach(), backend=backend)
    rejects(message, lambda m, b: b[0].sum(1), backend=backend)
    rejects(message, lambda m, b: m[0](b[0]).sum(1), backend=backend, parameters="2.*")
    frozen = classifier()
    frozen[0].requires_grad_(False)
    rejects(message, lambda m, b: m[0](b[0]).sum(1) + b[0].requires_grad_().sum(1), backend=backend, model=frozen)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_that_is_not_finite_names_the_sample(backend):
    x, y = pool()
    x[3] = float("nan")
    rejects("loss must be finite.*sample 3: nan", batch=(x, y), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_is_not_finite_names_the_sample(backend):
    def loss(model, batch):
        return (cross_entropy(model, batch) * batch[2]).sqrt()

    rejects("gradient must be finite.*sample 2", loss, (*pool(), torch.tensor([1.0, 1, 0, 1, 1])), backend=backend)


def test_batches_must_agree():
    rejects(r"batch\[0\] has 5, batch\[1\] has 4", batch=(torch.ones(5, 4), torch.ones(4)))
    rejects("at least one tensor: got str", batch="no")
    rejects("at least one sample", batch=(torch.ones(0, 4), torch.ones(0)))
    rejects(r"batch\['t'\].*one number", batch={"x": torch.ones(5), "t": torch.tensor(1.0)})


def test_something_must_be_trainable():
    frozen = classifier().requires_grad_(False)
    rejects(r"no trainable parameter \(4 are frozen\)", model=frozen)
    rejects("no trainable parameter", model=nn.Tanh())
    rejects("parameters='3.*' matches no parameter.*nearest name is", parameters="3.*")
    frozen[2].requires_grad_(True)
    rejects(r"parameters='0\.\*' has no trainable", model=frozen, parameters="0.*")


def test_other_arguments():
    rejects("unknown backend 'factord': did you mean 'factored'", backend="factord")
    rejects("model must be a torch.nn.Module: got function", model=cross_entropy)
    rejects("memory_limit must be a number of bytes", memory_limit=0)
    rejects("memory_limit must be at least .* one sample", memory_limit=100)
    rejects("memory_limit must be at least .*backend='factored'", memory_limit=100, backend="dense")
    rejects("size must be at least 1", size=0, backend="sketch")
    rejects("float32 or float64: got torch.float16", model=classifier().half())
    rejects("layer '0' has max_norm=1.0", model=nn.Sequential(nn.Embedding(4, 3, max_norm=1.0)))
    mixed = classifier()
    mixed[2].double()
    rejects("one dtype and one device", model=mixed)


def test_vectors_must_fit():
    G = gradient_matrix(classifier(), cross_entropy, pool())
    with pytest.raises(InputError, match=r"x must have shape \(5,\).*got \(4,\)"):
        G.combine(np.ones(4))
    with pytest.raises(InputError, match=r"v must have shape \(67,\).*got \(3, 3\)"):
        G.project(torch.ones(3, 3))
    with pytest.raises(InputError, match="x must be finite: got 1 value"):
        G.combine([1, 2, np.nan, 0, 0])


def test_coupled_samples_are_refused():
    rejects("depends on the other samples", lambda m, b: cross_entropy(m, b) - cross_entropy(m, b).mean())
    rejects("depends on the other samples", lambda m, b: cross_entropy(m, b) * torch.rand(len(b[1])))
    norm = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    rejects("batch statistics", lambda m, b: m(b[0]).square().sum(1), model=norm)


def test_vectors_of_any_kind_and_results_in_numpy():
    G = gradient_matrix(classifier(), cross_entropy, pool())
    weights = np.array([1, 0, 2, 0, 1])
    fixed = weights.astype(float)
    fixed.flags.writeable = False
    for x in (weights, fixed, weights.tolist(), torch.tensor(weights), weights.astype(np.float32)):
        assert np.allclose(G.combine(x), G.combine(weights.astype(float)))
    assert G.combine(weights).dtype == np.float32
    assert {type(r) for r in (G.gram(), G.norms(), G.combine(weights), G.project(np.ones(67)))} == {np.ndarray}


@pytest.mark.parametrize("patterns", ["2.*", ["2.weight", "2.b*"]])
def test_chosen_parameters_only(check, loop, patterns):
    model, batch = classifier().double(), (torch.randn(5, 4, dtype=torch.float64), torch.arange(5) % 3)
    rows = loop(model, cross_entropy, batch, lambda m: list(m[2].parameters()))
    for backend in ("factored", "dense"):
        check(model, cross_entropy, batch, rows=rows, parameters=patterns, backend=backend)


def test_a_tied_parameter_has_either_name():
    model = nn.ModuleDict({"words": nn.Embedding(5, 4), "out": nn.Linear(4, 5, bias=False)})
    model["out"].weight = model["words"].weight

    def loss(model, ids):
        return model["out"](model["words"](ids)).square().sum((1, 2))

    for name in ("words.*", "out.weight"):
        assert gradient_matrix(model, loss, torch.tensor([[0, 1]]), parameters=name).dimension == 20


class Busy(nn.Module):
    """A model that counts its calls in a buffer, drops out and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x):
        self.calls += 1
        torch.rand(1)
        np.random.rand()  # noqa: NPY002 - a model may
        random.random()
        return self.layers(x)


def snapshot(model):
    return (
        [module.training for module in model.modules()],
        [tensor.detach().clone() for tensor in model.state_dict().values()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [p.requires_grad for p in model.parameters()],
        [len(module._forward_hooks) + len(module._backward_hooks) for module in model.modules()],
        torch.get_rng_state(),
        np.random.get_state()[1],  # noqa: NPY002
        random.getstate(),
    )


def same(one, two):
    if isinstance(one, torch.Tensor | np.ndarray):
        return bool((one == two).all())
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return one == two


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fails_at", [None, 1, 2, 3])
def test_the_model_is_left_as_it_was(backend, fails_at):
    model = Busy()
    cross_entropy(model, pool()).sum().backward()
    model.layers[2].eval()
    model.layers[0].bias.requires_grad_(False)
    calls = []

    def loss(model, batch):
        calls.append(1)
        result = cross_entropy(model, batch)
        if fails_at is not None and len(calls) >= fails_at:
            raise KeyError("mine")
        return result

    batch, buffer = pool(), model.calls
    before = snapshot(model)
    expected = contextlib.nullcontext() if fails_at is None else pytest.raises(KeyError, match="mine")
    with expected:
        gradient_matrix(model, loss, batch, backend=backend).gram()
    assert same(before, snapshot(model))
    assert model.calls is buffer


def test_an_error_of_the_loss_comes_through():
    def loss(model, batch):
        raise KeyError("mine")

    for backend in BACKENDS:
        with pytest.raises(KeyError, match="mine"):
            gradient_matrix(classifier(), loss, pool(), backend=backend)


def test_works_without_grad_mode_and_on_any_nesting(check):
    model = classifier().double()
    batch = {
        "x": [torch.randn(5, 4, dtype=torch.float64)],
        "more": ((torch.arange(5) % 3).numpy(), None, "note"),
    }

    def loss(model, batch):
        return functional.cross_entropy(model(batch["x"][0]), torch.from_numpy(batch["more"][0]), reduction="none")

    with torch.no_grad():
        found = gradient_matrix(model, loss, batch).gram()
    with torch.inference_mode():
        again = gradient_matrix(model, loss, batch).gram()
    assert abs(found - check(model, loss, batch).gram()).max() == 0 == abs(found - again).max()


def test_public_name():
    assert coreplay.gradient_matrix is gradient_matrix
