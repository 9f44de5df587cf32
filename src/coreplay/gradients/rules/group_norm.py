"""GroupNorm: y = γ_c x̂ + β_c for channel c, so the gradients are sums over the channel's positions."""

from torch import nn
from torch.nn import functional

from coreplay.gradients.factors import Factor
from coreplay.gradients.rules.registry import Rows, layer_rule

_ALL_BUT_FIRST = -1  # the row is one whole map (channels, …), however many dimensions it has


@layer_rule(nn.GroupNorm, row_dims=lambda module: (_ALL_BUT_FIRST, _ALL_BUT_FIRST))
def group_norm(module: nn.GroupNorm, parameter: str, rows: Rows) -> Factor:
    """Scale: output gradients times normalised inputs, summed over positions; shift: output gradients."""
    grads = rows.grads
    if parameter == "weight":
        grads = grads * functional.group_norm(rows.inputs, module.num_groups, eps=module.eps)
    return rows.total(grads.flatten(2).sum(2) if grads.dim() > 2 else grads)
