"""Continual federated training: algorithms, strategies, and the run over periods and rounds."""

from coreplay.federated.algorithm import Algorithm, algorithm, algorithms, make_algorithm
from coreplay.federated.config import PRESETS, Config
from coreplay.federated.engine import Engine, Update
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
    "Conductor",
    "Config",
    "Engine",
    "Event",
    "FlatModel",
    "Observer",
    "Run",
    "RunFolder",
    "Site",
    "Update",
    "algorithm",
    "algorithms",
    "check",
    "make_algorithm",
    "strategies",
    "train",
]
