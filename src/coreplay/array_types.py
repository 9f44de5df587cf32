"""Types of the arrays that modules pass to each other."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Vector: TypeAlias = NDArray[np.floating[Any]]  # numbers in the precision that they were given in
