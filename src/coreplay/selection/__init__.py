"""Selection: which samples of a pool one client keeps, alone. Numbers in, numbers out.

Knows nothing of torch, of Flower or of files. The gradients of a pool come in as an array, as a gram or as anything
with a `gram()`; indices go out.
"""

from coreplay.selection.api import (
    DEFAULT_METHOD,
    Selection,
    check_method,
    objective,
    select,
    select_from,
    selector,
    selectors,
)
from coreplay.selection.pool import Pool, make_pool
from coreplay.selection.solvers.capped_simplex import Minimum, minimise
from coreplay.selection.solvers.descent import project

__all__ = [
    "DEFAULT_METHOD",
    "Minimum",
    "Pool",
    "Selection",
    "check_method",
    "make_pool",
    "minimise",
    "objective",
    "project",
    "select",
    "select_from",
    "selector",
    "selectors",
]
