"""coreplay: continual federated learning with coordinated replay.

The public names below are loaded on first use, so that ``import coreplay`` stays instant and needs
neither torch nor Flower until something that uses them is called.
"""

from typing import TYPE_CHECKING

from coreplay.lazy import lazy_getattr

__version__ = "0.1.0"

if TYPE_CHECKING:
    from coreplay.coordination import coordinate as coordinate
    from coreplay.coordination import coordination_methods as coordination_methods
    from coreplay.coordination.method import coordination_method as coordination_method
    from coreplay.data import source as source
    from coreplay.errors import InputError as InputError
    from coreplay.gradients import gradient_matrix as gradient_matrix
    from coreplay.learning.hooks import algorithm as algorithm
    from coreplay.learning.hooks import algorithms as algorithms
    from coreplay.learning.hooks import continual_method as continual_method
    from coreplay.learning.hooks import continual_methods as continual_methods
    from coreplay.runtime import Config as Config
    from coreplay.runtime import run as run
    from coreplay.selection import objective as objective
    from coreplay.selection import select as select
    from coreplay.selection import selector as selector
    from coreplay.selection import selectors as selectors
    from coreplay.tasks import Task as Task
    from coreplay.tasks import task as task

_HOMES = {
    "Config": "coreplay.runtime",
    "InputError": "coreplay.errors",
    "Task": "coreplay.tasks",
    "algorithm": "coreplay.learning.hooks",
    "algorithms": "coreplay.learning.hooks",
    "continual_method": "coreplay.learning",
    "continual_methods": "coreplay.learning",
    "coordinate": "coreplay.coordination",
    "coordination_method": "coreplay.coordination.method",
    "coordination_methods": "coreplay.coordination",
    "gradient_matrix": "coreplay.gradients",
    "objective": "coreplay.selection",
    "run": "coreplay.runtime",
    "select": "coreplay.selection",
    "selector": "coreplay.selection",
    "selectors": "coreplay.selection",
    "source": "coreplay.data",
    "task": "coreplay.tasks",
}

__all__ = [
    "Config",
    "InputError",
    "Task",
    "__version__",
    "algorithm",
    "algorithms",
    "continual_method",
    "continual_methods",
    "coordinate",
    "coordination_method",
    "coordination_methods",
    "gradient_matrix",
    "objective",
    "run",
    "select",
    "selector",
    "selectors",
    "source",
    "task",
]


__getattr__ = lazy_getattr(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
