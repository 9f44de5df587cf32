"""`make` and the registry of tasks.

A task is made by a class or a function ``(stream, *, options) -> Task``, registered with `task` in a module of this
package or in any module of yours.
"""

from collections.abc import Callable, Mapping
from typing import Any

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.registry import Registry
from coreplay.tasks.base import Task
from coreplay.tasks.metrics import Metric

Maker = Callable[..., Task]

_registry: Registry[Maker] = Registry("task", "coreplay.tasks")
task = _registry.register


def tasks() -> dict[str, str]:
    """Return the names of all tasks with a one-line description of each.

    >>> sorted(tasks())
    ['image_classification', 'masked_lm', 'text_classification']
    """
    return _registry.descriptions()


def check_task(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a task or options of one that are not known."""
    _registry.options(name, options)


def make(name: str, stream: FederatedStream, **options: Any) -> Task:
    """Make a task for a stream.

    >>> from coreplay.data import load
    >>> make("image_classification", load("digits")).metric.name
    'accuracy'
    """
    made = _registry[name](stream, **_registry.options(name, options))
    if not isinstance(made.metric, Metric):
        raise InputError(
            f"the metric of task {name!r} must be a coreplay.tasks.Metric: got {made.metric!r}; write for example "
            "metric = Metric('accuracy', lower_is_better=False)"
        )
    return made
