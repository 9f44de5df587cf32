"""Owners, graph edges and plans, each alone."""

import gc

import pytest
import torch
from torch import nn

from coreplay.errors import InputError
from coreplay.gradients import gradient_matrix
from coreplay.gradients.chunking import Passes
from coreplay.gradients.ownership import MOST_SAMPLES, find_owners, signatures
from coreplay.gradients.problem import Problem, select_parameters
from coreplay.gradients.recorder import parameter_edges


def test_signatures_identify_every_sample_even_of_tiny_gradients():
    for dtype, scale in ((torch.float32, 1e-18), (torch.float32, 1e15), (torch.float64, 1e-200)):
        owner = torch.randperm(MOST_SAMPLES)
        plain = torch.randn(MOST_SAMPLES, 5, dtype=dtype) * scale
        codes = signatures(torch.zeros(MOST_SAMPLES, dtype=dtype))
        assert torch.equal(find_owners(plain, plain * codes[owner, None], MOST_SAMPLES), owner)


def test_rows_that_mix_samples_are_noticed_down_to_rounding():
    plain, other = torch.randn(1, 5).double(), torch.randn(1, 5).double()
    for share in (1.0, 1e-3, 1e-9):
        mixed, signed = plain + share * other, 2 * plain + 4 * share * other
        assert find_owners(mixed, signed, 3) is None
    assert find_owners(plain, 16 * plain, 3) is None  # no such sample
    assert find_owners(plain, float("nan") * plain, 3) is None


def test_rows_in_the_order_of_the_samples_are_checked_as_strictly():
    plain = torch.randn(6, 4).double()
    plain[3] = 0
    codes = torch.tensor([1, 1, 2, 2, 4, 4.0]).double()[:, None]
    assert find_owners(plain, plain * codes, 3).tolist() == [0, 0, 1, -1, 2, 2]
    for row, share in ((0, 1.0), (4, 1e-9)):  # what another sample adds to a row
        mixed, signed = plain.clone(), plain * codes
        mixed[row] += share * plain[2]
        signed[row] += 2 * share * plain[2]
        assert find_owners(mixed, signed, 3) is None
    assert find_owners(plain * 1e308, plain * 1e308 * codes, 3) is None  # what overflowed tells nothing


def test_rows_that_cannot_be_in_the_promised_order_have_no_owners():
    assert find_owners(torch.ones(4, 2), None, 2).tolist() == [0, 0, 1, 1]
    assert find_owners(torch.ones(1, 2), None, 2) is None
    assert find_owners(torch.ones(3, 2), None, 2) is None


def test_edges_stop_at_the_inputs_of_a_layer():
    layer = nn.Linear(3, 3)
    hidden = layer(torch.ones(2, 3))
    out = layer(hidden)
    names = {id(layer.weight): "weight"}
    assert len(parameter_edges([out], names)["weight"]) == 2
    assert len(parameter_edges([out], names, stop=[hidden])["weight"]) == 1


def test_less_memory_means_fewer_samples_together():
    model, batch = nn.Sequential(nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 50)), torch.randn(128, 50)
    problem = Problem(model, lambda m, x: m(x).square().sum(1), batch, 128, select_parameters(model, None))
    sizes = [max(b - a for a, b in Passes(problem, limit).ranges) for limit in (20_000, 100_000, 10**9)]
    assert sizes[0] < sizes[1] < sizes[2] == MOST_SAMPLES


def test_pools_of_probed_shapes_are_not_probed_again():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    calls = []

    def loss(model, batch):
        calls.append(len(batch))
        return model(batch).square().sum(dim=tuple(range(1, batch.dim())))

    probed = {}

    def made(*shape):
        calls.clear()
        batch = torch.randn(*shape)
        matrix = gradient_matrix(model, loss, batch, probe_cache=probed, batch_first=True)
        expected = gradient_matrix(model, loss, batch, "dense").gram()
        torch.testing.assert_close(torch.tensor(matrix.gram()), torch.tensor(expected), rtol=1e-4, atol=1e-5)
        return calls[: calls.index(shape[0])]  # what was looked at before the whole pool

    made(2, 4)
    assert probed == {}  # too small a pool to tell whether samples are independent
    assert made(5, 4) == [3, 2]
    assert made(7, 4) == []
    assert made(7, 3, 4) == [3, 2]  # other shapes
    assert len(probed) == 2

    def mixed(model, batch):
        return loss(model, batch - batch.mean(dim=0))

    probed.clear()
    gradient_matrix(model, mixed, torch.randn(1, 4), probe_cache=probed)
    with pytest.raises(InputError, match="depends on the other samples"):
        gradient_matrix(model, mixed, torch.randn(6, 4), probe_cache=probed)
    assert probed == {}


def test_nothing_of_a_pass_outlives_the_matrix():
    """A saved output that knows its place in the graph would hold the graph, which holds it; no collector sees that."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2), nn.Softmax(dim=1))

    def alive():
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    def loss(model, batch):
        return model(batch).square().sum(dim=1)

    for backend, options in (("factored", {}), ("dense", {}), ("sketch", {"size": 16})):
        gradient_matrix(model, loss, torch.randn(5, 3), backend, **options).gram()
        before = alive()
        for _ in range(3):
            gradient_matrix(model, loss, torch.randn(5, 3), backend, **options).gram()
        assert alive() == before, backend
