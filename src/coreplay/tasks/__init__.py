"""Tasks: a model, a per-sample loss, a collate function and a metric, for a stream."""

from coreplay.tasks.api import make, task, tasks
from coreplay.tasks.base import Batch, Tally, Task, batches, evaluate, features, tally, view
from coreplay.tasks.metrics import Metric, PeriodMatrix, exponential, forgetting, relative_change

__all__ = [
    "Batch",
    "Metric",
    "PeriodMatrix",
    "Tally",
    "Task",
    "batches",
    "evaluate",
    "exponential",
    "features",
    "forgetting",
    "make",
    "relative_change",
    "tally",
    "task",
    "tasks",
    "view",
]
