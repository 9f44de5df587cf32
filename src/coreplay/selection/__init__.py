"""Selection: which samples of a pool one client keeps, alone. Numbers in, numbers out.

Knows nothing of torch, of Flower or of files. The gradients of a pool come in as an array, as a gram or as anything
with a `gram()`; indices go out.
"""

from coreplay.selection.api import DEFAULT_METHOD as DEFAULT_METHOD
from coreplay.selection.api import Selection as Selection
from coreplay.selection.api import check_method as check_method
from coreplay.selection.api import objective as objective
from coreplay.selection.api import select as select
from coreplay.selection.api import select_from as select_from
from coreplay.selection.api import selector as selector
from coreplay.selection.api import selectors as selectors
from coreplay.selection.pool import Pool as Pool
from coreplay.selection.pool import make_pool as make_pool
from coreplay.selection.solvers.capped_simplex import Minimum as Minimum
from coreplay.selection.solvers.capped_simplex import minimise as minimise
from coreplay.selection.solvers.descent import project as project
