"""Layer rules: how a layer's input and output gradient give its parameters' per-sample gradients.

One rule a file; every file of this package is loaded, so a new one with a decorated function is all it takes.
"""

from importlib import import_module
from pkgutil import iter_modules

from coreplay.gradients.rules.registry import Rows, Rule, find_rule, layer_rule, layer_rules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Rows", "Rule", "find_rule", "layer_rule", "layer_rules"]
