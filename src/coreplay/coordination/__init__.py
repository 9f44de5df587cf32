"""Coordination: clients choose jointly through a few summed vectors, without torch, Flower or files.

`Client` and `Server` are the two halves, pure state machines; `coordinate` runs them in one process, `run_rounds` over
any transport; `coreplay.coordination.secure` hides single contributions from the server.
"""

from coreplay.coordination.client import Answer, Client, Session, takes_part
from coreplay.coordination.messages import Broadcast, Contribution
from coreplay.coordination.method import (
    ArrayGradients,
    Candidates,
    GradientMatrix,
    Method,
    ServerStep,
    coordination_method,
    coordination_methods,
    make_method,
)
from coreplay.coordination.rounds import (
    Coordination,
    CoordinationSpec,
    SecureSumError,
    Transport,
    coordinate,
    run_rounds,
)
from coreplay.coordination.server import Receipt, RoundResult, Server

__all__ = [
    "Answer",
    "ArrayGradients",
    "Broadcast",
    "Candidates",
    "Client",
    "Contribution",
    "Coordination",
    "CoordinationSpec",
    "GradientMatrix",
    "Method",
    "Receipt",
    "RoundResult",
    "SecureSumError",
    "Server",
    "ServerStep",
    "Session",
    "Transport",
    "coordinate",
    "coordination_method",
    "coordination_methods",
    "make_method",
    "run_rounds",
    "takes_part",
]
