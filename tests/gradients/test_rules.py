"""A layer rule of one's own."""

import pytest
import torch
from torch import nn

from coreplay import InputError
from coreplay.gradients import LayerRows, Outer, layer_rule, layer_rules, rules


def test_a_new_rule_is_one_decorated_function(check, monkeypatch):
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))

    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))

        def forward(self, x):
            return 2 * nn.functional.linear(x, self.weight)

    calls = []

    @layer_rule(Doubled, row_dims=lambda module: (1, 1))
    def doubled(module: Doubled, parameter: str, rows: LayerRows) -> Outer:
        """Weight: twice the output gradients times inputs."""
        calls.append(parameter)
        return Outer(2 * rows.grads, rows.inputs, rows.owner)

    check(Doubled(), lambda model, x: model(x).sin().sum((1, 2)), torch.randn(5, 6, 4, dtype=torch.float64))
    assert set(calls) == {"weight"}
    assert layer_rules()["Doubled"] == "Weight: twice the output gradients times inputs."


def test_two_rules_for_one_layer_are_refused():
    with pytest.raises(InputError, match="'Linear' is registered twice"):
        layer_rule(nn.Linear, row_dims=lambda module: (1, 1))(lambda module, parameter, rows: None)


def test_every_rule_is_described():
    assert {"Linear", "Embedding", "LayerNorm", "GroupNorm", "Conv1d", "Conv2d", "RMSNorm"} <= set(layer_rules())
    assert all(layer_rules().values())
