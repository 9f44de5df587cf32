"""Coordination: clients choose jointly through a few summed vectors. Pure state machines, no transport.

Knows nothing of torch, of Flower or of files. `Client` and `Server` are the two halves; `coordinate` runs them in one
process; `coreplay.coordination.secure` hides single contributions from the server.
"""

from coreplay.coordination.api import Coordination, RoundReport, coordinate
from coreplay.coordination.client import Client
from coreplay.coordination.matrix import GradientMatrix
from coreplay.coordination.messages import Broadcast, Contribution
from coreplay.coordination.method import (
    Method,
    Past,
    Steering,
    coordination_method,
    coordination_methods,
    make_method,
)
from coreplay.coordination.server import Receipt, Round, Server

__all__ = [
    "Broadcast",
    "Client",
    "Contribution",
    "Coordination",
    "GradientMatrix",
    "Method",
    "Past",
    "Receipt",
    "Round",
    "RoundReport",
    "Server",
    "Steering",
    "coordinate",
    "coordination_method",
    "coordination_methods",
    "make_method",
]
