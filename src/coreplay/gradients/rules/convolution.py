"""Convolution: a linear layer applied to patches, g_i = Σ_t b_t p_tᵀ over the output positions t."""

from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional

from coreplay.gradients.factors import Dense, Factor, Outer, sum_by_owner
from coreplay.gradients.rules import LayerRows, layer_rule

_TOGETHER = 1 << 24  # patch numbers unfolded at a time


def _row_dims(module: nn.Conv1d | nn.Conv2d) -> tuple[int, int]:
    return (len(module.kernel_size) + 1,) * 2


@layer_rule(nn.Conv1d, nn.Conv2d, row_dims=_row_dims)
def convolution(module: nn.Conv1d | nn.Conv2d, parameter: str, rows: LayerRows) -> Factor:
    """Weight: output gradients times input patches; bias: output gradients, summed over positions."""
    grads = rows.grads.flatten(2)
    if parameter == "bias":
        return rows.total(grads.sum(2))
    positions, (outputs, numel) = grads.shape[2], (module.out_channels, module.weight.numel())
    if module.groups == 1 and positions * (outputs + numel // outputs) < numel:
        patches = _patches(module, rows.inputs).transpose(1, 2).flatten(0, 1)
        return Outer(grads.transpose(1, 2).flatten(0, 1), patches, rows.owner.repeat_interleave(positions))
    step = max(1, _TOGETHER // (numel // outputs * module.groups * positions))
    pieces = [
        _weight_gradients(module, rows.inputs[start : start + step], grads[start : start + step])
        for start in range(0, len(grads), step)
    ]
    return Dense(sum_by_owner(torch.cat(pieces), rows.owner, rows.n))


def _weight_gradients(module: nn.Conv1d | nn.Conv2d, inputs: Tensor, grads: Tensor) -> Tensor:
    patches = _patches(module, inputs)
    grads = grads.reshape(len(grads), module.groups, -1, grads.shape[2])
    patches = patches.view(len(patches), module.groups, -1, patches.shape[2])
    return (grads @ patches.mT).flatten(1)


def _patches(module: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return the patches under the kernel, (rows, input channels x kernel, positions)."""
    kernel, dilation, stride = module.kernel_size, module.dilation, module.stride
    if isinstance(module.padding, str):
        totals = [d * (k - 1) if module.padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
        margins = [(total // 2, total - total // 2) for total in totals]
    else:
        margins = [(margin, margin) for margin in module.padding]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    inputs = functional.pad(inputs, list(chain.from_iterable(reversed(margins))), mode=mode)
    if len(kernel) == 1:  # unfold knows images only
        inputs, kernel, dilation, stride = inputs.unsqueeze(2), (1, *kernel), (1, *dilation), (1, *stride)
    return functional.unfold(inputs, kernel, dilation=dilation, stride=stride)
