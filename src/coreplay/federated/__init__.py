"""Continual federated training: algorithms, strategies, and the run over periods and rounds."""

from coreplay.federated.algorithm import Algorithm, algorithm, algorithms, make_algorithm
from coreplay.federated.config import PRESETS, Config
from coreplay.federated.engine import Census, Engine, EngineError, SecureTotal, Update
from coreplay.federated.events import Event, Observer
from coreplay.federated.flat import FlatModel
from coreplay.federated.folder import RunFolder
from coreplay.federated.run import Conductor, Run, check
from coreplay.federated.site import Site
from coreplay.federated.strategy import strategies
from coreplay.federated.training import train

__all__ = [
    "PRESETS",
    "Algorithm",
    "Census",
    "Conductor",
    "Config",
    "Engine",
    "EngineError",
    "Event",
    "FlatModel",
    "Observer",
    "Run",
    "RunFolder",
    "SecureTotal",
    "Site",
    "Update",
    "algorithm",
    "algorithms",
    "check",
    "make_algorithm",
    "strategies",
    "train",
]
