"""Every layer rule with every setting that changes its gradient, against the loop."""

import pytest
import torch
from torch import nn

from coreplay import gradient_matrix
from coreplay.gradients.rules import find_rule

IMAGES, SERIES, IDS = (4, 4, 7, 6), (4, 4, 9), (4, 5)

CASES = {
    "linear": (nn.Linear(6, 3), (4, 6)),
    "linear on tokens": (nn.Linear(6, 3), (4, 5, 6)),
    "linear on maps": (nn.Linear(6, 3, bias=False), (4, 2, 3, 6)),
    "layer norm": (nn.LayerNorm(6), (4, 5, 6)),
    "layer norm over two": (nn.LayerNorm((5, 6)), (4, 5, 6)),
    "layer norm without bias": (nn.LayerNorm(6, bias=False, eps=0.1), (4, 5, 6)),
    "rms norm": (nn.RMSNorm(6), (4, 5, 6)),
    "group norm": (nn.GroupNorm(2, 4), IMAGES),
    "group norm on vectors": (nn.GroupNorm(2, 4), (4, 4)),
    "conv1d": (nn.Conv1d(4, 3, 3), SERIES),
    "conv1d circular": (nn.Conv1d(4, 3, 3, padding=2, padding_mode="circular"), SERIES),
    "conv1d wide": (nn.Conv1d(4, 64, 8), SERIES),
    "conv2d": (nn.Conv2d(4, 3, (3, 2), stride=(2, 1), padding=(1, 0)), IMAGES),
    "conv2d dilated": (nn.Conv2d(4, 3, 2, dilation=2, bias=False), IMAGES),
    "conv2d same": (nn.Conv2d(4, 3, (5, 3), padding="same"), IMAGES),
    "conv2d valid": (nn.Conv2d(4, 3, 3, padding="valid"), IMAGES),
    "conv2d reflect": (nn.Conv2d(4, 3, 3, padding=2, padding_mode="reflect"), IMAGES),
    "conv2d groups": (nn.Conv2d(4, 6, 3, groups=2), IMAGES),
    "conv2d depthwise": (nn.Conv2d(4, 4, 3, groups=4), IMAGES),
    "conv2d wide": (nn.Conv2d(4, 128, (7, 5)), IMAGES),
}


def squares(model, batch):
    out = model(batch)
    return (out.sin() * torch.arange(out[0].numel()).view(out.shape[1:])).flatten(1).sum(1)


@pytest.mark.parametrize("case", CASES)
def test_rule_agrees_with_the_loop(check, case):
    layer, shape = CASES[case]
    assert find_rule(layer) is not None
    check(layer.double(), squares, torch.randn(shape, dtype=torch.float64))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"sparse": True}, {"scale_grad_by_freq": True}])
def test_embedding_agrees_with_the_loop(check, options):
    table = nn.Embedding(6, 3, **options).double()
    batch = torch.tensor([[2, 2, 1, 0, 5], [2, 2, 2, 2, 2], [1, 1, 3, 3, 2], [5, 4, 3, 2, 1]])
    if options.get("sparse"):  # the loop wants dense gradients; the layer's setting does not change the numbers
        expected = nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False)
        rows = torch.stack(
            [torch.autograd.grad(squares(expected, ids[None]).sum(), expected.weight)[0] for ids in batch]
        )
        check(table, squares, batch, rows=rows.flatten(1).numpy())
    else:
        check(table, squares, batch)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("layer", [nn.Linear(6, 6), nn.LayerNorm(6)])
def test_frozen_parameters_are_left_out(check, layer, frozen):
    layer = layer.double()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name != frozen)
    check(layer, squares, torch.randn(4, 5, 6, dtype=torch.float64))


def test_subclass_with_its_own_forward_has_no_rule(check):
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Named(nn.Linear):
        pass

    class NamedScaled(Scaled):
        pass

    assert find_rule(Named(2, 2)) is not None
    assert find_rule(Scaled(2, 2)) is None
    assert find_rule(NamedScaled(2, 2)) is None
    patched = nn.Linear(2, 2)
    patched.forward = lambda x: x @ patched.weight
    assert find_rule(patched) is None
    for layer in (Scaled(6, 3), NamedScaled(6, 3)):
        check(layer.double(), squares, torch.randn(4, 5, 6, dtype=torch.float64))


def test_no_layer_with_a_rule_goes_the_slow_way(monkeypatch, check):
    def slow(problem, start, stop, names):
        assert not names
        return {}

    monkeypatch.setattr("coreplay.gradients.capture.per_sample_autograd", slow)
    monkeypatch.setattr("coreplay.gradients.capture.functional_call", None)
    for layer, shape in CASES.values():
        check(layer.double(), squares, torch.randn(shape, dtype=torch.float64))


def test_hooks_are_removed():
    model, hooks = nn.Linear(2, 2), []

    def loss(model, batch):
        hooks.append(len(model._forward_hooks))
        return model(batch).sum(1)

    gradient_matrix(model, loss, torch.ones(3, 2))
    assert 1 in hooks
    assert not model._forward_hooks
