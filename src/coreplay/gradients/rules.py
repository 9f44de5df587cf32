"""Layer rules: how the input and the output gradient of a layer give the per-sample gradients of its parameters.

The gradient of a sample is a sum over its rows t (tokens, positions), with input a_t and output gradient b_t:

* *Linear*: Σ_t b_t a_tᵀ, and Σ_t b_t for the bias. *Convolution*: the same with the patch p_t under the kernel for a_t.
* *Embedding*: row `id` of the table receives b_t wherever `id` was looked up.
* *Norms*, y = γ ∘ x̂ + β: Σ_t b_t ∘ x̂_t and Σ_t b_t. x̂ is normalised over the last dimensions (LayerNorm), divided by
  its root mean square (RMSNorm, no β), or normalised by groups of channels (GroupNorm: sums over the positions).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from coreplay.errors import InputError
from coreplay.gradients.factors import Dense, Factor, Lookup, Outer, sum_by_owner


@dataclass(frozen=True)
class LayerRows:
    """The rows of one call of a layer: input, output gradient and owner (the sample) of each, and the sample count n.

    Rows are sorted by owner; those with a zero output gradient are left out.
    """

    inputs: Tensor
    grads: Tensor
    owner: Tensor
    n: int

    def total(self, values: Tensor) -> Dense:
        """Add up `values`, one entry per row, over the rows of each sample."""
        return Dense(sum_by_owner(values.flatten(1), self.owner, self.n))


RuleFunction: TypeAlias = Callable[[Any, str, LayerRows], Factor]
F = TypeVar("F", bound=RuleFunction)


@dataclass(frozen=True)
class Rule:
    """A rule function with the arguments of `layer_rule`."""

    function: RuleFunction
    row_dims: Callable[[Any], tuple[int, int]]
    parameters: tuple[str, ...]
    accepts: Callable[[Any], bool]


_RULES: dict[type[nn.Module], Rule] = {}


def layer_rule(
    *layers: type[nn.Module],
    row_dims: Callable[[Any], tuple[int, int]],
    parameters: tuple[str, ...] = ("weight", "bias"),
    accepts: Callable[[Any], bool] = lambda module: True,
) -> Callable[[F], F]:
    """Decorate the rule `f(module, parameter, rows) -> Factor` of the given layer types.

    Parameters
    ----------
    *layers
        Module classes; subclasses that inherit `forward` follow the rule too.
    row_dims
        Returns for a module how many trailing dimensions one row has, of the input and of the output; -1 means all but
        the first.
    parameters
        The layer's own names of the parameters that the rule covers; any other is left to the fallback.
    accepts
        Returns whether the rule covers the settings of a module; others are left to the fallback.
    """

    def decorate(function: F) -> F:
        for layer in layers:
            if layer in _RULES:
                raise InputError(f"layer rule for {layer.__name__!r} is registered twice")
            _RULES[layer] = Rule(function, row_dims, parameters, accepts)
        return function

    return decorate


def find_rule(module: nn.Module) -> Rule | None:
    """Return the rule for a module, or None if no rule knows its forward pass."""
    if "forward" in vars(module):  # replaced on the instance
        return None
    for layer in type(module).__mro__:
        rule = _RULES.get(layer)
        if rule is not None:
            return rule if rule.accepts(module) else None
        if "forward" in vars(layer):  # a forward pass of its own, before any that a rule is for
            return None
    return None


def layer_rules() -> dict[str, str]:
    """Return the layers with a rule, each with the rule's one-line description.

    >>> layer_rules()["Linear"]
    'Weight: output gradients times inputs; bias: output gradients.'
    """
    return {layer.__name__: (inspect.getdoc(rule.function) or "").partition("\n")[0] for layer, rule in _RULES.items()}


@layer_rule(nn.Linear, row_dims=lambda module: (1, 1))
def linear(module: nn.Linear, parameter: str, rows: LayerRows) -> Factor:
    """Weight: output gradients times inputs; bias: output gradients."""
    if parameter == "bias":
        return rows.total(rows.grads)
    return Outer(rows.grads, rows.inputs, rows.owner)


@layer_rule(nn.Embedding, row_dims=lambda module: (0, 1), accepts=lambda module: not module.scale_grad_by_freq)
def embedding(module: nn.Embedding, parameter: str, rows: LayerRows) -> Factor:
    """Table: output gradients at the ids looked up; the padding id receives none."""
    if module.padding_idx is None:
        return Lookup(rows.inputs, rows.grads, rows.owner)
    real = (rows.inputs != module.padding_idx).nonzero().squeeze(1)
    return Lookup(rows.inputs[real], rows.grads[real], rows.owner[real])


@layer_rule(nn.LayerNorm, row_dims=lambda module: (len(module.normalized_shape),) * 2)
def layer_norm(module: nn.LayerNorm, parameter: str, rows: LayerRows) -> Factor:
    """Scale: output gradients times normalised inputs; shift: output gradients."""
    if parameter == "bias":
        return rows.total(rows.grads)
    return rows.total(rows.grads * functional.layer_norm(rows.inputs, module.normalized_shape, eps=module.eps))


@layer_rule(nn.RMSNorm, row_dims=lambda module: (len(module.normalized_shape),) * 2)
def rms_norm(module: nn.RMSNorm, parameter: str, rows: LayerRows) -> Factor:
    """Scale: output gradients times normalised inputs."""
    return rows.total(rows.grads * functional.rms_norm(rows.inputs, module.normalized_shape, eps=module.eps))


@layer_rule(nn.GroupNorm, row_dims=lambda module: (-1, -1))
def group_norm(module: nn.GroupNorm, parameter: str, rows: LayerRows) -> Factor:
    """Scale: output gradients times normalised inputs, summed over positions; shift: output gradients."""
    grads = rows.grads
    if parameter == "weight":
        grads = grads * functional.group_norm(rows.inputs, module.num_groups, eps=module.eps)
    return rows.total(grads.flatten(2).sum(2) if grads.dim() > 2 else grads)


Convolution: TypeAlias = nn.Conv1d | nn.Conv2d
_PATCHES = 1 << 24  # patch numbers unfolded at a time


@layer_rule(nn.Conv1d, nn.Conv2d, row_dims=lambda module: (len(module.kernel_size) + 1,) * 2)
def convolution(module: Convolution, parameter: str, rows: LayerRows) -> Factor:
    """Weight: output gradients times input patches; bias: output gradients, summed over positions."""
    grads = rows.grads.flatten(2)
    if parameter == "bias":
        return rows.total(grads.sum(2))
    positions, (outputs, numel) = grads.shape[2], (module.out_channels, module.weight.numel())
    if module.groups == 1 and positions * (outputs + numel // outputs) < numel:
        patches = _patches(module, rows.inputs).transpose(1, 2).flatten(0, 1)
        return Outer(grads.transpose(1, 2).flatten(0, 1), patches, rows.owner.repeat_interleave(positions))
    step = max(1, _PATCHES // (numel // outputs * module.groups * positions))
    pieces = [
        _weight_gradients(module, rows.inputs[start : start + step], grads[start : start + step])
        for start in range(0, len(grads), step)
    ]
    return rows.total(torch.cat(pieces))


def _weight_gradients(module: Convolution, inputs: Tensor, grads: Tensor) -> Tensor:
    patches = _patches(module, inputs)
    grads = grads.reshape(len(grads), module.groups, -1, grads.shape[2])
    patches = patches.view(len(patches), module.groups, -1, patches.shape[2])
    return (grads @ patches.mT).flatten(1)


def _patches(module: Convolution, inputs: Tensor) -> Tensor:
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
