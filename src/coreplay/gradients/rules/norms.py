"""Normalisation layers: y = γ ∘ x̂ + β, so the gradients are Σ_t b_t ∘ x̂_t and Σ_t b_t.

x̂ is normalised over the last dimensions (LayerNorm), divided by its root mean square (RMSNorm, no β), or normalised by
groups of channels (GroupNorm, with γ and β per channel: the sums run over the channel's positions).
"""

from torch import nn
from torch.nn import functional

from coreplay.gradients.factors import Factor
from coreplay.gradients.rules import LayerRows, layer_rule


@layer_rule(nn.LayerNorm, row_dims=lambda module: (len(module.normalized_shape),) * 2)
def layer_norm(module: nn.LayerNorm, parameter: str, rows: LayerRows) -> Factor:
    """Scale: output gradients times normalised inputs; shift: output gradients."""
    if parameter == "bias":
        return rows.total(rows.grads)
    normalised = functional.layer_norm(rows.inputs, module.normalized_shape, eps=module.eps)
    return rows.total(rows.grads * normalised)


_ALL_BUT_FIRST = -1  # the row is one whole map (channels, …), however many dimensions it has


@layer_rule(nn.GroupNorm, row_dims=lambda module: (_ALL_BUT_FIRST, _ALL_BUT_FIRST))
def group_norm(module: nn.GroupNorm, parameter: str, rows: LayerRows) -> Factor:
    """Scale: output gradients times normalised inputs, summed over positions; shift: output gradients."""
    grads = rows.grads
    if parameter == "weight":
        grads = grads * functional.group_norm(rows.inputs, module.num_groups, eps=module.eps)
    return rows.total(grads.flatten(2).sum(2) if grads.dim() > 2 else grads)


@layer_rule(nn.RMSNorm, row_dims=lambda module: (len(module.normalized_shape),) * 2)
def rms_norm(module: nn.RMSNorm, parameter: str, rows: LayerRows) -> Factor:
    """Scale: output gradients times normalised inputs."""
    return rows.total(rows.grads * functional.rms_norm(rows.inputs, module.normalized_shape, eps=module.eps))
