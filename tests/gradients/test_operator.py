"""Pools larger than the memory limit: chunks, recomputation, a model that changes in between."""

from concurrent.futures import ThreadPoolExecutor as Pool

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coreplay import InputError, gradient_matrix
from coreplay.gradients import gram as gram_module
from coreplay.gradients.factors import Lookup, Outer, merge
from coreplay.gradients.gram import built_gram, pair_gram, prefer_pairs


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.body = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 16))
        self.out = nn.Linear(16, 30)
        self.out.weight = self.words.weight

    def forward(self, ids):
        return self.out(self.body(self.words(ids)))


def tag(model, ids):
    losses = functional.cross_entropy(model(ids).mT, ids.roll(1, 1), reduction="none")
    return (losses * (ids > 8)).sum(1)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 150])
def test_chunks_of_any_number(check, n):
    model, ids = Tagger().double(), torch.randint(0, 30, (n, 4))
    roomy = check(model, tag, ids)
    assert len(roomy._kept) == len(roomy._passes.ranges) == -(-n // 64)


@pytest.mark.parametrize("limit", [100_000, 150_000])
def test_pool_larger_than_the_limit(check, limit):
    model, ids = Tagger().double(), torch.randint(0, 30, (24, 4))
    G = check(model, tag, ids, memory_limit=limit)
    assert 0 < len(G._kept) < len(G._passes.ranges)
    check(model, tag, ids, memory_limit=limit)
    again = G.gram()  # another block is kept now; the result may not depend on it
    assert np.allclose(again, gradient_matrix(model, tag, ids).gram(), atol=1e-12)
    assert np.allclose(G.combine(np.ones(24)), gradient_matrix(model, tag, ids).combine(np.ones(24)), atol=1e-12)


def test_threads_share_the_products_and_change_nothing(monkeypatch):
    model, ids = Tagger().double(), torch.randint(0, 30, (24, 4))
    alone = gradient_matrix(model, tag, ids).gram()
    used = []
    monkeypatch.setattr(
        gram_module, "ThreadPoolExecutor", lambda *given, **more: used.append(given) or Pool(*given, **more)
    )
    torch.set_num_threads(2)
    try:
        np.testing.assert_allclose(gradient_matrix(model, tag, ids).gram(), alone, rtol=1e-12)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert used == [(2,)]


def test_kept_factors_outlive_training_but_recomputation_does_not():
    model, ids = Tagger(), torch.randint(0, 30, (24, 4))
    kept, partial = gradient_matrix(model, tag, ids), gradient_matrix(model, tag, ids, memory_limit=60_000)
    before = kept.gram()
    with torch.no_grad():
        model.body[0].weight += 1
    assert np.array_equal(kept.gram(), before)
    for product in (
        partial.gram,
        lambda: partial.combine(np.ones(24)),
        lambda: partial.project(np.ones(partial.dimension)),
    ):
        with pytest.raises(InputError, match=r"model has changed.*raise memory_limit"):
            product()


def rows_of(n, rows, left, right):
    owner = torch.randint(0, n, (rows,)).sort()[0]
    return Outer(torch.randn(rows, left).double(), torch.randn(rows, right).double(), owner)


def lookups_of(n, rows, left, right):
    owner = torch.randint(0, n, (rows,)).sort()[0]
    return Lookup(torch.randint(0, left, (rows,)), torch.randn(rows, right).double(), owner)


@pytest.mark.parametrize("makers", [[rows_of], [lookups_of], [rows_of, lookups_of], [rows_of, rows_of, lookups_of]])
def test_both_forms_agree(makers):
    sides = [merge([make(n, 6, 50, 40) for make in makers], (50, 40), n) for n in (3, 4)]
    pairs, built = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    pair_gram(pairs, *sides, symmetric=False)
    built_gram(built, [(0, sides[0])], [(0, sides[1])], workspace=20_000)  # several slabs
    assert torch.allclose(pairs, built)
    symmetric, whole = torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    pair_gram(symmetric, sides[1], sides[1], symmetric=True)
    block = [(0, sides[1])]
    built_gram(whole, block, block, workspace=20_000)
    assert torch.allclose(symmetric.triu(), whole.triu())


class Attention(nn.Module):
    """Three layers with one input, the query used at some of the rows only, and one with an input of its own."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(30, size) for size in (20, 20, 30, 3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT
        return self.out((scores.softmax(2) @ self.value(x))[:, :2])


@pytest.mark.parametrize("limit", [2**30, 150_000])
def test_layers_with_one_input_are_multiplied_as_one(check, limit):
    model, batch = Attention().double(), torch.randn(7, 5, 30, dtype=torch.float64)
    G = check(model, lambda m, x: m(x).square().sum((1, 2)), batch, memory_limit=limit)
    chunk = next(iter(G._kept.values()))
    groups = gram_module._groups([chunk])
    assert ["key.weight", "value.weight"] in groups  # the query's rows are fewer: only two positions count
    assert sorted(name for names in groups for name in names) == sorted(chunk.parts)


def test_the_cheaper_form_is_chosen():
    def preferred(n, tokens, left, right):
        owner = torch.arange(n).repeat_interleave(tokens)
        outer = Outer(torch.zeros(n * tokens, left), torch.zeros(n * tokens, right), owner)
        block = [(0, merge([outer], (left, right), n))]
        return prefer_pairs(block, block, n, n)

    assert preferred(64, 2, 3000, 300)  # a decoder at a few masked positions
    assert not preferred(64, 60, 300, 300)  # long sequences
    assert gram_module._PER_PAIR > 0


def test_small_workspace_changes_nothing(check):
    model = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 12)).double()
    batch = torch.randn(9, 20, 12, dtype=torch.float64)
    check(model, lambda m, x: m(x).square().sum((1, 2)), batch, memory_limit=400_000)
