"""Tasks: a model, a per-sample loss, a collate function and a metric, for a stream."""

from coreplay.tasks.api import make, task, tasks
from coreplay.tasks.base import Batch, Tally, Task, batches, evaluate, features, tally
from coreplay.tasks.metrics import PeriodMatrix, forgetting, relative_change

__all__ = [
    "Batch",
    "PeriodMatrix",
    "Tally",
    "Task",
    "batches",
    "evaluate",
    "features",
    "forgetting",
    "make",
    "relative_change",
    "tally",
    "task",
    "tasks",
]
