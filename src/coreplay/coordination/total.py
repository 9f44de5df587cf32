"""A sum that does not depend on the order of its terms: 64-bit fixed point, one vector of memory.

Floating-point addition is not associative, so the last bits of a sum would depend on who answered first, and a
selection may hang on a last bit. Integer addition is. With 64 bits the rounding (about 1e-13 for a thousand clients) is
far below that of the float32 numbers which are added.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 2**16  # numbers at a time: the temporaries stay in the cache


class Total:
    """A running sum of float32 vectors whose entries together stay below `bound`.

    >>> total = Total(2, bound=10.0)
    >>> total.add(np.array([0.5, -1.25], dtype=np.float32))
    >>> total.add(np.array([0.5, 1.0], dtype=np.float32))
    >>> total.value().tolist()
    [1.0, -0.25]
    """

    def __init__(self, dimension: int, bound: float) -> None:
        self._scale = 2.0 ** min(52, int(np.floor(62 - np.log2(max(bound, 1.0)))))
        self._sum = np.zeros(dimension, dtype=np.int64)

    def add(self, vector: NDArray[Any]) -> None:
        """Add one vector."""
        for start in range(0, len(vector), CHUNK):
            part = vector[start : start + CHUNK].astype(np.float64)
            part *= self._scale
            self._sum[start : start + CHUNK] += np.rint(part, out=part).astype(np.int64)

    def value(self) -> NDArray[np.float32]:
        """Return the sum so far."""
        out = np.empty(len(self._sum), dtype=np.float32)
        for start in range(0, len(out), CHUNK):
            out[start : start + CHUNK] = self._sum[start : start + CHUNK] / self._scale
        return out


def norm(vector: NDArray[Any]) -> float:
    """Return the length of a vector, accumulated in float64; NaN or infinite if an entry is.

    >>> norm(np.float32([3, 4]))
    5.0
    """
    squares = 0.0
    for start in range(0, len(vector), CHUNK):
        part = vector[start : start + CHUNK].astype(np.float64)
        squares += float(np.square(part, out=part).sum())  # a dot product would wake BLAS threads
    return float(np.sqrt(squares))


def products(vectors: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Return the inner products of all pairs of vectors, accumulated in float64.

    >>> products([np.float32([1, 2]), np.float32([0, 3])]).tolist()
    [[5.0, 6.0], [6.0, 9.0]]
    """
    out = np.zeros((len(vectors), len(vectors)))
    for start in range(0, len(vectors[0]), CHUNK):
        part = np.array([vector[start : start + CHUNK] for vector in vectors], dtype=np.float64)
        out += part @ part.T
    return out


def mixture(vectors: list[NDArray[np.float32]], weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the weighted sum of the vectors."""
    out = np.zeros(len(vectors[0]), dtype=np.float32)
    for start in range(0, len(out), CHUNK):
        part = np.array([vector[start : start + CHUNK] for vector in vectors], dtype=np.float64)
        out[start : start + CHUNK] = weights @ part
    return out
