"""Modules without a rule, parameters outside their layers, layouts that hide samples: exact all the same."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, rnn

from coreplay import InputError, gradient_matrix


class Model(nn.Module):
    """A module whose forward pass is the given function of it."""

    def __init__(self, forward, **parts):
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self._forward(self, x)


def squares(model, batch):
    return model(batch).flatten(1).square().sum(1)


def sequences(n=4, tokens=5, width=6):
    return torch.randn(n, tokens, width, dtype=torch.float64)


def recurrent(kind, **options):
    batch_first = options.get("batch_first", False)
    turn = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    return Model(lambda self, x: turn(self.layer(turn(x))[0]), layer=kind(6, 7, **options))


def packed(self, x):
    lengths = torch.arange(len(x)) % 3 + 1 if len(x) > 1 else torch.tensor([2])
    sequence = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return rnn.pad_packed_sequence(self.layer(sequence)[0], batch_first=True, total_length=x.shape[1])[0]


def attention():
    return nn.MultiheadAttention(6, 2, batch_first=True)


def token(self, x):
    return self.layer(torch.cat([self.start.expand(len(x), 1, 6), x], 1))


CASES = {
    "lstm": recurrent(nn.LSTM, batch_first=True, bidirectional=True),
    "lstm time-major": recurrent(nn.LSTM, num_layers=2),
    "gru": recurrent(nn.GRU, batch_first=True),
    "rnn": recurrent(nn.RNN),
    "initial state": Model(lambda s, x: s.layer(x, x[None, :, 0, :])[0], layer=nn.GRU(6, 6, batch_first=True)),
    "attention": Model(lambda s, x: s.layer(x, x, x)[0], layer=attention()),
    "attention by keywords": Model(lambda s, x: s.layer(query=x, key=x, value=x)[0], layer=attention()),
    "encoder": nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0),
    "bilinear": Model(lambda s, x: s.layer(x, x.flip(1)), layer=nn.Bilinear(6, 6, 3)),
    "batch norm": Model(lambda s, x: s.layer(x.mT), layer=nn.BatchNorm1d(6)),
    "prelu": nn.PReLU(),
    "conv3d": Model(lambda s, x: s.layer(x[:, None, None]), layer=nn.Conv3d(1, 2, (1, 2, 2))),
    "conv of one map": Model(
        lambda s, x: torch.stack([s.layer(one) for one in x]), layer=nn.Conv1d(5, 2, 3, dtype=torch.float64)
    ),
    "learned token": Model(token, start=nn.Parameter(torch.randn(1, 1, 6)), layer=nn.Linear(6, 6)),
    "tied by function": Model(
        lambda s, x: nn.functional.linear(s.layer(x).tanh(), s.layer.weight.T), layer=nn.Linear(6, 6)
    ),
    "layer norm by function": Model(
        lambda s, x: nn.functional.layer_norm(x, (6,), s.layer.weight, s.layer.bias), layer=nn.LayerNorm(6)
    ),
    "weight norm": Model(lambda s, x: s.layer(x), layer=parametrizations.weight_norm(nn.Linear(6, 3))),
    "time-major linear": Model(lambda s, x: s.layer(x.transpose(0, 1)).transpose(0, 1), layer=nn.Linear(6, 3)),
    "flattened rows": Model(
        lambda s, x: s.layer(x.flatten(0, 1).flip(0)).flip(0).view(len(x), -1), layer=nn.Linear(6, 3)
    ),
    "one row for all": Model(lambda s, x: x + s.layer(torch.ones(1, 5, 6, dtype=x.dtype)), layer=nn.Linear(6, 6)),
    "one row without batch": Model(lambda s, x: x + s.layer(torch.arange(5)), layer=nn.Embedding(5, 6)),
    "one row repeated": Model(
        lambda s, x: x + s.layer(torch.arange(5)[None]).repeat(len(x), 1, 1), layer=nn.Embedding(5, 6)
    ),
    "one row summed": Model(lambda s, x: x * s.layer(torch.arange(5)[None]).sum(0), layer=nn.Embedding(5, 6)),
    "in-place sum": Model(lambda s, x: s.layer(x).add_(1).mul_(x[..., :3]), layer=nn.Linear(6, 3)),
    "unused": Model(lambda s, x: s.layer(x), layer=nn.Linear(6, 3), spare=nn.Linear(6, 3)),
    "cut off": Model(lambda s, x: s.layer(x) + s.spare(x).detach(), layer=nn.Linear(6, 3), spare=nn.Linear(6, 3)),
    "zero gradient": Model(lambda s, x: s.layer(x) * 0, layer=nn.Linear(6, 3)),
}


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_loop(check, case, n):
    check(CASES[case].double(), squares, sequences(n))


@pytest.mark.parametrize("backend", ["factored", "dense"])
def test_single_samples_without_gradient_have_zero_columns(check, backend):
    def forward(self, x):
        return torch.stack([self.layer(one) if one[0, 0] > 0 else self.layer(one).detach() for one in x])

    batch = sequences(4)
    batch[:, 0, 0] = torch.tensor([-1, -1, 1, -1])
    G = check(Model(forward, layer=nn.Linear(6, 3)).double(), squares, batch, backend=backend)
    assert (G.norms() > 0).tolist() == [False, False, True, False]


def test_packed_sequences_of_equal_structure(check):
    model = Model(packed, layer=nn.LSTM(6, 7, batch_first=True)).double()
    lengths = torch.tensor([3, 1, 5, 2])

    def loss(model, batch):
        x, sizes = batch
        sequence = rnn.pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
        out = rnn.pad_packed_sequence(model.layer(sequence)[0], batch_first=True, total_length=5)[0]
        return out.flatten(1).square().sum(1)

    check(model, loss, (sequences(), lengths))


def test_a_users_hook_that_changes_the_output_is_respected(check):
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)).double()
    model[0].register_forward_hook(lambda module, args, output: 3 * output)
    batch, rows = sequences(), []
    for x in batch:
        rows.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(squares(model, x[None]).sum(), model.parameters())])
        )
    check(model, squares, batch, rows=torch.stack(rows).numpy())


@pytest.mark.parametrize("n", [2, 4])
def test_checkpointing(check, n):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)

    check(
        Model(forward, layer=nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))).double(),
        squares,
        sequences(n),
    )


def test_reentrant_checkpointing_is_refused():
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.layer, x.requires_grad_(), use_reentrant=True)

    with pytest.raises(InputError, match="use_reentrant=False"):
        gradient_matrix(Model(forward, layer=nn.Linear(6, 2)).double(), squares, sequences())
