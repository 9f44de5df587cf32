"""Tasks: a model, a per-sample loss, a collate function and a metric, for a stream."""

from coreplay.tasks.api import make, task, tasks
from coreplay.tasks.base import (
    Batch,
    Outputs,
    Task,
    WeightedSum,
    batch_rows,
    batches,
    evaluate,
    features,
    metric_sum,
    sample_losses,
    view,
)
from coreplay.tasks.metrics import Metric, PeriodMatrix, exponential, forgetting, relative_change

__all__ = [
    "Batch",
    "Metric",
    "Outputs",
    "PeriodMatrix",
    "Task",
    "WeightedSum",
    "batch_rows",
    "batches",
    "evaluate",
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
