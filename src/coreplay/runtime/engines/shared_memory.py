"""Vectors in memory that several processes see."""

from multiprocessing.shared_memory import SharedMemory

import numpy as np
from numpy.typing import NDArray


class SharedVector:
    """A vector of floats in shared memory; who made it removes it, also if it is killed (by Python's tracker).

    >>> made = SharedVector(4, "float32")
    >>> seen = SharedVector(4, "float32", made.name)
    >>> made.values[1] = 2.5
    >>> seen.values.tolist()
    [0.0, 2.5, 0.0, 0.0]
    >>> seen.close(), made.close()
    (None, None)
    """

    def __init__(self, size: int, dtype: str, name: str | None = None) -> None:
        self._owner = name is None
        bytes_needed = size * np.dtype(dtype).itemsize
        self._memory = SharedMemory(name, create=name is None, size=bytes_needed)
        self.values: NDArray[np.floating] = np.ndarray(size, dtype, self._memory.buf)

    @property
    def name(self) -> str:
        """The name by which another process finds it."""
        return self._memory.name

    def close(self) -> None:
        """Let go of it, once or again; whoever made it also removes it."""
        if hasattr(self, "values"):
            del self.values
            self._memory.close()
            if self._owner:
                self._memory.unlink()
