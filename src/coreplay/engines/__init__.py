"""Engines: where a run runs. `run` makes everything from a configuration and carries it out."""

from typing import TYPE_CHECKING

from coreplay.lazy import lazily

if TYPE_CHECKING:
    from coreplay.engines.api import prepare as prepare
    from coreplay.engines.api import run as run
    from coreplay.engines.local import LocalEngine as LocalEngine
    from coreplay.engines.local import WorkerError as WorkerError

__all__ = ["LocalEngine", "WorkerError", "prepare", "run"]

__getattr__ = lazily(
    __name__,
    {
        "LocalEngine": "coreplay.engines.local",
        "WorkerError": "coreplay.engines.local",
        "prepare": "coreplay.engines.api",
        "run": "coreplay.engines.api",
    },
)
