"""Whether worker processes can import what a run needs.

A worker process imports the main module of the program, if that is a file, and the modules in which
something was registered. What is defined in a notebook cell, or on Python's command line, it can't know.
"""

import multiprocessing
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

from coreplay.errors import InputError
from coreplay.registry import own
from coreplay.runtime.config import Config

UNGUARDED = 79  # exit code of a worker process in which the import of the main module starts a run
Key = tuple[str, str]  # the kind of a registry, and a name in it


def end_child() -> None:
    """End a worker process in which the import of the main module starts a run."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(UNGUARDED)  # the process that started this one says what is wrong


def check_main() -> None:
    """Raise an `InputError` if worker processes can't import the main module."""
    end_child()
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise InputError(
            "this program is read from standard input, where worker processes can't import it: write it to a file, or "
            'set engine.name = "serial" to run without worker processes'
        )


def check_cells(config: Config) -> None:
    """Raise an `InputError` if the run needs something that is defined in a notebook cell or on the command line."""
    main = sys.modules["__main__"]
    if main.__spec__ is None and not hasattr(main, "__file__"):
        check_missing(config, [key for key, module in own.items() if module == "__main__"])


def check_missing(config: Config, missing: Iterable[Key]) -> None:
    """Raise an `InputError` if the run needs something that worker processes do not know."""
    strategy = config.replay.strategy
    needed = {("task", config.task.name), ("algorithm", config.federated.algorithm)}
    needed |= {("method", strategy), ("coordination method", strategy)}
    needed |= {("continual method", name) for name in config.continual.methods}
    for kind, name in sorted(needed & set(missing)):
        what = "strategy" if name == strategy else kind
        raise InputError(
            f"{what} {name!r} is unknown to worker processes: put it into a module (a .py file, and not "
            'under `if __name__ == "__main__":`) and import that, or set engine.name = "serial"'
        )


def known_here() -> dict[Key, str]:
    """Return what worker processes must know besides what the package has, with the module of each."""
    return {key: module for key, module in own.items() if key[0] != "task"}  # a task is sent as an object


def import_all(wanted: dict[Key, str]) -> set[Key]:
    """Import the modules of what another process knows, and return what is still missing here."""
    for module in sorted(set(wanted.values()) - {"__main__"}):
        with suppress(ImportError):
            import_module(module)
    return set(wanted) - set(own)
