"""LayerNorm: y = γ ∘ x̂ + β, so the gradients are Σ_t b_t ∘ x̂_t and Σ_t b_t."""

from torch import nn
from torch.nn import functional

from coreplay.gradients.factors import Factor
from coreplay.gradients.rules.registry import Rows, layer_rule


@layer_rule(nn.LayerNorm, row_dims=lambda module: (len(module.normalized_shape),) * 2)
def layer_norm(module: nn.LayerNorm, parameter: str, rows: Rows) -> Factor:
    """Scale: output gradients times normalised inputs; shift: output gradients."""
    if parameter == "bias":
        return rows.total(rows.grads)
    normalised = functional.layer_norm(rows.inputs, module.normalized_shape, eps=module.eps)
    return rows.total(rows.grads * normalised)
