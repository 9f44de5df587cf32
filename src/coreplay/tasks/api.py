"""`make` and the registry of tasks.

A task is made by a function ``(stream, *, options) -> Task``, registered with `task` in a file of its own in
`coreplay.tasks.kinds`, or in any module of yours.
"""

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from coreplay.data import FederatedStream
from coreplay.registry import Registry
from coreplay.tasks.base import Task

Maker = Callable[..., Task]

_registry: Registry[Maker] = Registry("task")
task = _registry.register


@cache
def _known() -> Registry[Maker]:
    """Return the registry with our own tasks in it: each module of `kinds` registers on import."""
    package = import_module("coreplay.tasks.kinds")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return _registry


def tasks() -> dict[str, str]:
    """Return the names of all tasks with a one-line description of each.

    >>> sorted(tasks())
    ['image_classification', 'masked_lm', 'text_classification']
    """
    return _known().descriptions()


def make(name: str, stream: FederatedStream, **options: Any) -> Task:
    """Make a task for a stream.

    >>> from coreplay.data import load
    >>> make("image_classification", load("digits")).metric
    'accuracy'
    """
    known = _known()
    return known[name](stream, **known.options(name, options))
