"""Engines: where a run runs. `run` makes everything from a configuration and carries it out."""

from typing import TYPE_CHECKING

from coreplay.lazy import lazily

if TYPE_CHECKING:
    from coreplay.engines.api import prepare as prepare
    from coreplay.engines.api import run as run
    from coreplay.engines.local import LocalEngine as LocalEngine
    from coreplay.engines.machine import WorkerError as WorkerError
    from coreplay.engines.serial import SerialEngine as SerialEngine

__all__ = ["LocalEngine", "SerialEngine", "WorkerError", "prepare", "run"]

__getattr__ = lazily(
    __name__,
    {
        "LocalEngine": "coreplay.engines.local",
        "SerialEngine": "coreplay.engines.serial",
        "WorkerError": "coreplay.engines.machine",
        "prepare": "coreplay.engines.api",
        "run": "coreplay.engines.api",
    },
)
