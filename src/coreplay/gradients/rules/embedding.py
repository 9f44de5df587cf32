"""Embedding: row `id` of the table receives the output gradient wherever `id` was looked up."""

from torch import nn

from coreplay.gradients.factors import Factor, Lookup
from coreplay.gradients.rules import LayerRows, layer_rule


def _plain(module: nn.Embedding) -> bool:
    return not module.scale_grad_by_freq


@layer_rule(nn.Embedding, row_dims=lambda module: (0, 1), accepts=_plain)
def embedding(module: nn.Embedding, parameter: str, rows: LayerRows) -> Factor:
    """Table: output gradients at the ids looked up; the padding id receives none."""
    if module.padding_idx is None:
        return Lookup(rows.inputs, rows.grads, rows.owner)
    real = (rows.inputs != module.padding_idx).nonzero().squeeze(1)
    return Lookup(rows.inputs[real], rows.grads[real], rows.owner[real])
