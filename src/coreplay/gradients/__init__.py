"""The gradient matrix of a pool as an operator: gram, combine, project, without ever building it."""

from coreplay.gradients.api import gradient_matrix
from coreplay.gradients.factors import Dense, Lookup, Outer
from coreplay.gradients.operator import GradientMatrix
from coreplay.gradients.problem import select_parameters
from coreplay.gradients.rules import LayerRows, layer_rule, layer_rules

__all__ = [
    "Dense",
    "GradientMatrix",
    "LayerRows",
    "Lookup",
    "Outer",
    "gradient_matrix",
    "layer_rule",
    "layer_rules",
    "select_parameters",
]
