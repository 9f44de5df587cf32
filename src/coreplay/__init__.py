"""coreplay: continual federated learning with coordinated replay.

The public names are loaded on first use, so that ``import coreplay`` is instant and needs neither torch nor Flower.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from coreplay.coordination import coordinate, coordination_method, coordination_methods
    from coreplay.data import source
    from coreplay.errors import InputError
    from coreplay.gradients import gradient_matrix
    from coreplay.learning.hooks import algorithm, algorithms, continual_method, continual_methods
    from coreplay.runtime import Config, run
    from coreplay.selection import objective, select, selector, selectors
    from coreplay.tasks import Task, task

__all__ = [
    "Config", "InputError", "Task", "__version__", "algorithm", "algorithms", "continual_method", "continual_methods",
    "coordinate", "coordination_method", "coordination_methods", "gradient_matrix", "objective", "run", "select",
    "selector", "selectors", "source", "task",
]  # fmt: skip


def lazy_getattr(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports names from its modules on first use.

    >>> lazy_getattr("os", {"path": ["basename"]})("basename")("folder/file")
    'file'
    """
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load


__getattr__ = lazy_getattr(
    __name__,
    {
        "coordination": ["coordinate", "coordination_method", "coordination_methods"],
        "data": ["source"],
        "errors": ["InputError"],
        "gradients": ["gradient_matrix"],
        "learning.hooks": ["algorithm", "algorithms", "continual_method", "continual_methods"],
        "runtime": ["Config", "run"],
        "selection": ["objective", "select", "selector", "selectors"],
        "tasks": ["Task", "task"],
    },
)


def __dir__() -> list[str]:
    return __all__
