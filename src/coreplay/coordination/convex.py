"""A convex programme over the capped simplex whose result has been checked by its own gap."""

import numpy as np
from numpy.typing import NDArray

from coreplay.selection._descent import descend
from coreplay.selection.capped_simplex import Minimum, minimise

Floats = NDArray[np.float64]


def proven_minimum(
    gram: Floats,
    budget: int,
    *,
    linear: Floats | None = None,
    start: Floats | None = None,
    tolerance: float = 1e-7,
) -> Minimum:
    """Minimise xᵀKx + 2cᵀx over the capped simplex; descend from an even spread if active sets did not get there.

    Active sets are the fast way and may cycle when c is large against K; their gap tells. The descent is slower and
    always arrives; active sets then take its last digits from there.

    >>> proven_minimum(np.diag([1.0, 1.0, 2.0]), 1, linear=np.array([-9.0, 9.0, 9.0])).x.tolist()
    [1.0, 0.0, 0.0]
    """
    found = minimise(gram, budget, linear=linear, start=start, tolerance=tolerance)
    if found.gap <= 10 * max(tolerance * abs(found.value), 1e-3 * tolerance * budget):
        return found
    n = len(gram)
    K = np.ascontiguousarray(gram, dtype=np.float64)
    c = np.zeros(n) if linear is None else np.ascontiguousarray(linear, dtype=np.float64)
    x = descend(K, np.zeros(n), c, budget, np.full(n, budget / n), tolerance, 5000)
    other = minimise(gram, budget, linear=linear, start=x, tolerance=tolerance)
    return other if other.value < found.value else found
