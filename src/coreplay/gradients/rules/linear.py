"""Linear: g_i = Σ_t b_t a_tᵀ over the rows t of sample i, and Σ_t b_t for the bias."""

from torch import nn

from coreplay.gradients.factors import Factor, Outer
from coreplay.gradients.rules import LayerRows, layer_rule


@layer_rule(nn.Linear, row_dims=lambda module: (1, 1))
def linear(module: nn.Linear, parameter: str, rows: LayerRows) -> Factor:
    """Weight: output gradients times inputs; bias: output gradients."""
    if parameter == "bias":
        return rows.total(rows.grads)
    return Outer(rows.grads, rows.inputs, rows.owner)
