"""The reference: a loop of plain autograd over the samples, and a check of every product against it."""

import copy

import numpy as np
import pytest
import torch

import coreplay


def loop(model, loss, batch, parameters=None):
    """Return the raw gradients, one row per sample, written as differently from the library as can be."""
    model = copy.deepcopy(model).eval()
    chosen = [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters(model)
    rows = []
    for i in range(coreplay.gradients.problem.batch_size(batch)):
        model.zero_grad(set_to_none=True)
        value = loss(model, coreplay.gradients.problem.rebuild(batch, lambda leaf, i=i: leaf[i : i + 1]))
        if value.requires_grad:
            value.sum().backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in chosen]
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows).double().numpy()


def relative(found, expected):
    scale = np.linalg.norm(expected)
    return np.linalg.norm(found - expected) / (scale if scale > 0 else 1.0)


def check(model, loss, batch, *, rows=None, **options):
    """Compare all products with the loop; return the operator."""
    rows = loop(model, loss, batch) if rows is None else rows
    tolerance = 1e-9 if next(model.parameters()).dtype == torch.float64 else 1e-4
    norms = np.linalg.norm(rows, axis=1)
    unit = np.divide(rows, norms[:, None], out=np.zeros_like(rows), where=norms[:, None] > 0)
    G = coreplay.gradient_matrix(model, loss, batch, **options)
    rng = np.random.default_rng(0)
    x, v = rng.uniform(size=len(rows)), rng.normal(size=rows.shape[1])
    assert len(G) == len(rows)
    assert G.dimension == rows.shape[1]
    assert relative(G.norms(), norms) < tolerance
    assert relative(G.gram(), unit @ unit.T) < tolerance
    assert relative(G.combine(x), x @ unit) < tolerance
    assert relative(G.project(v), unit @ v) < tolerance
    assert relative(G.combine(torch.tensor(x)), x @ unit) < tolerance
    return G


@pytest.fixture(name="check", scope="session")
def _check():
    return check


@pytest.fixture(name="loop", scope="session")
def _loop():
    return loop


@pytest.fixture(name="relative", scope="session")
def _relative():
    return relative


@pytest.fixture(autouse=True, scope="module")
def _seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors gain nothing from threads, and much is lost where others compute too
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
