"""RMSNorm: y = γ ∘ x / rms(x), so the gradient is Σ_t b_t ∘ x_t / rms(x_t)."""

from torch import nn
from torch.nn import functional

from coreplay.gradients.factors import Factor
from coreplay.gradients.rules.registry import Rows, layer_rule


@layer_rule(nn.RMSNorm, row_dims=lambda module: (len(module.normalized_shape),) * 2)
def rms_norm(module: nn.RMSNorm, parameter: str, rows: Rows) -> Factor:
    """Scale: output gradients times normalised inputs."""
    return rows.total(rows.grads * functional.rms_norm(rows.inputs, module.normalized_shape, eps=module.eps))
