"""The runtime: configuration, the client runtime and its requests, the trainer, and engines on one machine.

Names are loaded on first use: a deployed client reads messages in a new process, which must not wait for torch.
"""

from typing import TYPE_CHECKING

from coreplay import lazy_getattr

if TYPE_CHECKING:
    from coreplay.runtime.api import prepare as prepare
    from coreplay.runtime.api import run as run
    from coreplay.runtime.client import ClientRuntime as ClientRuntime
    from coreplay.runtime.config import Config as Config
    from coreplay.runtime.engine import EngineError as EngineError
    from coreplay.runtime.engines.machine import WorkerError as WorkerError
    from coreplay.runtime.engines.processes import ProcessesEngine as ProcessesEngine
    from coreplay.runtime.engines.serial import SerialEngine as SerialEngine
    from coreplay.runtime.events import Event as Event
    from coreplay.runtime.events import Observer as Observer
    from coreplay.runtime.presets import PRESETS as PRESETS
    from coreplay.runtime.result import Run as Run
    from coreplay.runtime.run_dir import RunFolder as RunFolder
    from coreplay.runtime.strategy import strategies as strategies
    from coreplay.runtime.trainer import Trainer as Trainer
    from coreplay.runtime.trainer import check as check

__getattr__ = lazy_getattr(
    __name__,
    {
        "api": ("prepare", "run"),
        "client": ("ClientRuntime",),
        "config": ("Config",),
        "engine": ("EngineError",),
        "engines.machine": ("WorkerError",),
        "engines.processes": ("ProcessesEngine",),
        "engines.serial": ("SerialEngine",),
        "events": ("Event", "Observer"),
        "presets": ("PRESETS",),
        "result": ("Run",),
        "run_dir": ("RunFolder",),
        "strategy": ("strategies",),
        "trainer": ("Trainer", "check"),
    },
)
