"""coreplay: continual federated learning with coordinated replay.

The public names below are loaded on first use, so that ``import coreplay`` stays instant and needs
neither torch nor Flower until something that uses them is called.
"""

from typing import TYPE_CHECKING

from coreplay.lazy import lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from coreplay.coordination import coordinate as coordinate
    from coreplay.coordination import coordination_methods as coordination_methods
    from coreplay.engines import run as run
    from coreplay.errors import InputError as InputError
    from coreplay.federated import Config as Config
    from coreplay.gradients import gradient_matrix as gradient_matrix
    from coreplay.selection import objective as objective
    from coreplay.selection import select as select
    from coreplay.selection import selectors as selectors

_HOMES = {
    "Config": "coreplay.federated",
    "InputError": "coreplay.errors",
    "coordinate": "coreplay.coordination",
    "coordination_methods": "coreplay.coordination",
    "gradient_matrix": "coreplay.gradients",
    "objective": "coreplay.selection",
    "run": "coreplay.engines",
    "select": "coreplay.selection",
    "selectors": "coreplay.selection",
}

__all__ = [
    "Config",
    "InputError",
    "__version__",
    "coordinate",
    "coordination_methods",
    "gradient_matrix",
    "objective",
    "run",
    "select",
    "selectors",
]


__getattr__ = lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
