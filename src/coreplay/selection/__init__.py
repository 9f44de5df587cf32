"""Selection: which samples of a pool one client keeps, alone. Numbers in, numbers out.

Knows nothing of torch, of Flower or of files. The gradients of a pool come in as an array, as a gram or as anything
with a ``gram()``; indices go out.
"""

from coreplay.selection.api import (
    DEFAULT_METHOD,
    Selection,
    check_method,
    choose,
    objective,
    select,
    selector,
    selectors,
)
from coreplay.selection.capped_simplex import Minimum, minimise, project
from coreplay.selection.pool import Pool

__all__ = [
    "DEFAULT_METHOD",
    "Minimum",
    "Pool",
    "Selection",
    "check_method",
    "choose",
    "minimise",
    "objective",
    "project",
    "select",
    "selector",
    "selectors",
]
