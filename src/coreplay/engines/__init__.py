"""Engines: where a run runs. `run` makes everything from a configuration and carries it out."""

from coreplay.engines.api import prepare, run
from coreplay.engines.local import LocalEngine, WorkerError

__all__ = ["LocalEngine", "WorkerError", "prepare", "run"]
