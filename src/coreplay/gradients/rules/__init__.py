"""Layer rules: how the input and the output gradient of a layer give the per-sample gradients of its parameters.

Each rule has a file; every file of this package is loaded, so a new one with a decorated function is all it takes.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeAlias, TypeVar

from torch import Tensor, nn

from coreplay.errors import InputError
from coreplay.gradients.factors import Dense, Factor, sum_by_owner


@dataclass(frozen=True)
class LayerRows:
    """What one call of a layer leaves: per row, its input, its output gradient and the sample it belongs to.

    LayerRows are sorted by owner and rows with a zero output gradient are left out.
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
    """A rule with the number of trailing dimensions that make up one row of the input and of the output."""

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
        From the module, how many trailing dimensions one row has: (of the input, of the output).
    parameters
        The layer's own names of the parameters that the rule is for; any other is left to the fallback.
    accepts
        Modules with settings that the rule does not cover are left to the general fallback.
    """

    def decorate(function: F) -> F:
        for layer in layers:
            if layer in _RULES:
                raise InputError(f"layer rule for {layer.__name__!r} is registered twice")
            _RULES[layer] = Rule(function, row_dims, parameters, accepts)
        return function

    return decorate


def find_rule(module: nn.Module) -> Rule | None:
    """Return the rule for a module, or None if its forward pass is not one that a rule knows."""
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


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
