"""Sketches: unbiased, shared through the seed, and the same whatever form the factors are kept in."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coreplay import gradient_matrix
from coreplay.gradients.factors import Dense, Lookup, Outer, Parts, dense_values
from coreplay.gradients.sketch import Projections


def network():
    return nn.Sequential(
        nn.Embedding(50, 16), nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 50)
    ).double()


def next_word(model, ids):
    return functional.cross_entropy(model(ids).mT, ids.roll(1, 1), reduction="none").sum(1)


def test_same_operator_in_a_small_space():
    model, ids = network(), torch.randint(0, 50, (20, 6))
    exact = gradient_matrix(model, next_word, ids)
    G = gradient_matrix(model, next_word, ids, backend="sketch", size=500, seed=3)
    x = np.random.default_rng(0).uniform(size=20)
    assert (len(G), G.dimension, G.combine(x).shape) == (20, 500, (500,))
    assert np.allclose(G.norms(), exact.norms())
    assert np.allclose(np.diag(G.gram()), 1)
    assert np.allclose(G.project(G.combine(x)), G.gram() @ x)
    assert np.linalg.norm(G.combine(np.eye(20)[0])) == pytest.approx(1)


def test_error_falls_with_size():
    model, ids = network(), torch.randint(0, 50, (20, 6))
    exact = gradient_matrix(model, next_word, ids).gram()
    errors = [
        np.abs(gradient_matrix(model, next_word, ids, backend="sketch", size=size).gram() - exact).mean()
        for size in (64, 1024, 16384)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.01


def test_the_seed_is_the_agreement():
    model, ids = network(), torch.randint(0, 50, (8, 6))
    one, same, other = (
        gradient_matrix(model, next_word, ids, backend="sketch", size=100, seed=seed).combine(np.ones(8))
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)
    halves = [gradient_matrix(model, next_word, part, "sketch", size=100, seed=1) for part in (ids[:4], ids[4:])]
    assert np.allclose(sum(half.combine(np.ones(4)) for half in halves), one)


@pytest.mark.parametrize("size", [1, 5, 300])
@pytest.mark.parametrize(("height", "width"), [(5, 7), (20_000, 7), (40, 3000), (9000, 60)])
def test_every_form_of_a_gradient_has_the_same_sketch(height, width, size):
    owner = torch.tensor([0, 0, 2])
    outer = Outer(torch.randn(3, height).double(), torch.randn(3, width).double(), owner)
    lookup = Lookup(torch.tensor([1, 4, 4]), torch.randn(3, width).double(), owner)
    parts = Parts((height, width), 3, outer, lookup)
    explicit = Parts((height, width), 3, dense=Dense(dense_values(parts)))
    projections = Projections(size, 0, outer.left)
    assert torch.allclose(projections.sketch("w", parts), projections.sketch("w", explicit))
    assert not projections.sketch("w", parts)[1].any()


def test_inner_products_are_right_on_average():
    left, right, owner = torch.randn(4, 9).double(), torch.randn(4, 7).double(), torch.tensor([0, 0, 1, 1])
    parts = Parts((9, 7), 2, Outer(left, right, owner))
    values = dense_values(parts)
    sketches = [Projections(32, seed, left).sketch("w", parts) for seed in range(600)]
    found = torch.stack([sketch @ sketch.T for sketch in sketches]).mean(0)
    scale = values.norm(dim=1)
    assert ((found - values @ values.T).abs() <= 0.1 * scale.outer(scale)).all()
