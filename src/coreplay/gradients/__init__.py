"""The gradient matrix of a pool as an operator: gram, combine, project, without ever building it."""

from coreplay.gradients.api import gradient_matrix
from coreplay.gradients.factors import Dense, Lookup, Outer
from coreplay.gradients.operator import GradientMatrix
from coreplay.gradients.rules import Rows, layer_rule, layer_rules

__all__ = [
    "Dense",
    "GradientMatrix",
    "Lookup",
    "Outer",
    "Rows",
    "gradient_matrix",
    "layer_rule",
    "layer_rules",
]
