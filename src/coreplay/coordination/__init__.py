"""Coordination: clients choose jointly through a few summed vectors. Pure state machines, no transport.

Knows nothing of torch, of Flower or of files. `Client` and `Server` are the two halves; `coordinate` runs them in one
process; `coreplay.coordination.secure` hides single contributions from the server.
"""

from coreplay.coordination.api import Coordination, coordinate
from coreplay.coordination.client import Client, takes_part
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
from coreplay.coordination.rounds import CoordinationSpec, RoundResult, SecureSumError, Transport, run_rounds
from coreplay.coordination.server import Receipt, Round, Server
from coreplay.coordination.session import Answer, Session

__all__ = [
    "Answer",
    "Broadcast",
    "Client",
    "Contribution",
    "Coordination",
    "CoordinationSpec",
    "GradientMatrix",
    "Method",
    "Past",
    "Receipt",
    "Round",
    "RoundResult",
    "SecureSumError",
    "Server",
    "Session",
    "Steering",
    "Transport",
    "coordinate",
    "coordination_method",
    "coordination_methods",
    "make_method",
    "run_rounds",
    "takes_part",
]
