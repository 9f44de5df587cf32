"""Learning: federated algorithms, continual methods, and the local training that they hook into."""

from coreplay.learning.context import LearningContext, Step
from coreplay.learning.hooks import (
    Algorithm,
    LearningHook,
    Methods,
    RoundInfo,
    algorithm,
    continual_method,
    continual_methods,
    make_algorithm,
)
from coreplay.learning.parameter_vector import FlatModel
from coreplay.learning.training import Trained, Turn, train

__all__ = [
    "Algorithm",
    "FlatModel",
    "LearningContext",
    "LearningHook",
    "Methods",
    "RoundInfo",
    "Step",
    "Trained",
    "Turn",
    "algorithm",
    "continual_method",
    "continual_methods",
    "make_algorithm",
    "train",
]
