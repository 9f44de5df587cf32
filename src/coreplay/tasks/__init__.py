"""Tasks: a model, a per-sample loss, a collate function and a metric, for a stream.

A task is made by a class or a function ``(stream, *, options) -> Task``, registered with `task` in a module of this
package or in any module of yours.
"""

from collections.abc import Callable, Mapping
from typing import Any

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.registry import Registry
from coreplay.tasks.base import (
    Batch,
    Task,
    WeightedSum,
    batch_rows,
    batches,
    evaluate,
    evaluating,
    features,
    metric_sum,
    sample_losses,
    view,
)
from coreplay.tasks.metrics import Metric, PeriodMatrix, exponential, forgetting, relative_change

__all__ = [
    "Batch",
    "Metric",
    "PeriodMatrix",
    "Task",
    "WeightedSum",
    "batch_rows",
    "batches",
    "check_task",
    "evaluate",
    "evaluating",
    "exponential",
    "features",
    "forgetting",
    "make",
    "metric_sum",
    "relative_change",
    "sample_losses",
    "task",
    "tasks",
    "view",
]

_registry: Registry[Callable[..., Task]] = Registry("task", "coreplay.tasks")
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
        problem = f"the metric of task {name!r} must be a coreplay.tasks.Metric: got {made.metric!r}"
        raise InputError(f"{problem}; write for example metric = Metric('accuracy', lower_is_better=False)")
    return made
