"""The gradient matrix of a pool as an operator: gram, combine, project, without ever building it."""

from coreplay.gradients.api import gradient_matrix as gradient_matrix
from coreplay.gradients.factors import Dense as Dense
from coreplay.gradients.factors import Lookup as Lookup
from coreplay.gradients.factors import Outer as Outer
from coreplay.gradients.operator import GradientMatrix as GradientMatrix
from coreplay.gradients.problem import select_parameters as select_parameters
from coreplay.gradients.rules import LayerRows as LayerRows
from coreplay.gradients.rules import layer_rule as layer_rule
from coreplay.gradients.rules import layer_rules as layer_rules
