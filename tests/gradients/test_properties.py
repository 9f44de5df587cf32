"""Random small networks with reused, tied and mixed layers agree with the loop, whatever the memory limit."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coreplay import gradient_matrix

WIDTH, TOKENS, WORDS = 6, 3, 7


class Convolve(nn.Conv1d):
    """A convolution over tokens, features last."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH, 3, padding=1)


class Tokens(nn.Module):
    """Applies a features-first layer to features-last data."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.mT).mT


class Recurrent(nn.Module):
    def __init__(self, kind, batch_first):
        super().__init__()
        self.layer, self.batch_first = kind(WIDTH, WIDTH, batch_first=batch_first), batch_first

    def forward(self, x):
        return self.layer(x)[0] if self.batch_first else self.layer(x.transpose(0, 1))[0].transpose(0, 1)


class Own(nn.Module):
    """A module with parameters of its own, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return torch.tanh(x * self.scale + self.shift) * self.scale


LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "no bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "group norm": lambda: Tokens(nn.GroupNorm(2, WIDTH)),
    "convolution": lambda: Tokens(Convolve()),
    "lstm": lambda: Recurrent(nn.LSTM, True),
    "gru": lambda: Recurrent(nn.GRU, False),
    "own": Own,
    "tanh": nn.Tanh,
    "in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
}


class Network(nn.Module):
    """Layers in a given order, with repetitions, over word and broadcast position embeddings."""

    def __init__(self, kinds, order, tied):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(LAYERS[kind]() for kind in kinds)
        self.out = nn.Linear(WIDTH, WORDS)
        if tied:
            self.out.weight = self.words.weight
        self.order = order

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(TOKENS)[None])
        for position in self.order:
            x = x + self.layers[position % len(self.layers)](x)
        return self.out(x)


def next_word(model, batch):
    ids, weights = batch
    losses = nn.functional.cross_entropy(model(ids).mT, ids.roll(1, 1), reduction="none")
    return (losses * weights).sum(1)


@st.composite
def networks(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=3))
    order = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    torch.manual_seed(draw(st.integers(0, 1000)))
    network = Network(kinds, order, draw(st.booleans())).double()
    for parameter in network.parameters():
        parameter.requires_grad_(draw(st.integers(0, 4)) > 0)
    network.out.bias.requires_grad_(True)
    return network


@settings(max_examples=40, deadline=None)
@given(networks(), st.integers(1, 5), st.booleans())
def test_any_network_agrees_with_the_loop(check, loop, network, n, tight):
    ids = torch.randint(0, WORDS, (n, TOKENS))
    weights = torch.rand(n, TOKENS, dtype=torch.float64) * (torch.rand(n, TOKENS) < 0.7)
    rows = loop(network, next_word, (ids, weights))
    options = {"memory_limit": 60_000} if tight else {}
    check(network, next_word, (ids, weights), rows=rows, **options)


@settings(max_examples=10, deadline=None)
@given(networks(), st.integers(1, 4))
def test_dense_is_the_loop_as_well(check, network, n):
    batch = torch.randint(0, WORDS, (n, TOKENS)), torch.ones(n, TOKENS, dtype=torch.float64)
    check(network, next_word, batch, backend="dense")


@settings(max_examples=10, deadline=None)
@given(networks())
def test_column_order_follows_the_samples(network):
    ids, weights = torch.randint(0, WORDS, (5, TOKENS)), torch.ones(5, TOKENS, dtype=torch.float64)
    order = torch.tensor([3, 1, 4, 0, 2])
    gram = gradient_matrix(network, next_word, (ids, weights)).gram()
    shuffled = gradient_matrix(network, next_word, (ids[order], weights[order])).gram()
    assert abs(gram[order][:, order] - shuffled).max() < 1e-9
