"""Vectors between the processes of a simulation: in Ray's shared memory, where all read them in place.

Flower packs an array into bytes, and Ray packs these once more; at both ends that makes several copies of a model. A
`SharedArray` keeps its vector as it is: pickle hands it over as a buffer of its own, Ray copies that into shared memory
once, and whoever gets it reads it there. What goes to many clients is put there once for all of them (`post`). Only for
Flower's simulation: in a deployment Flower knows its own `Array` alone.
"""

from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray


class SharedArray(Array):
    """An array of Flower's that is never packed: `vector` is what was given, or a view of shared memory, not to write.

    >>> import pickle
    >>> pickle.loads(pickle.dumps(SharedArray(np.float32([1, 2])))).vector
    array([1., 2.], dtype=float32)
    """

    def __init__(self, vector: NDArray[Any] | None, reference: Any = None) -> None:
        self._vector, self._reference = vector, reference

    @classmethod
    def post(cls, vector: NDArray[Any]) -> "SharedArray":
        """Put a vector into shared memory, for as long as any process has this array."""
        import ray

        return cls(None, ray.put(vector))

    @property
    def vector(self) -> NDArray[Any]:
        """The vector."""
        if self._vector is None:
            import ray

            self._vector = np.asarray(ray.get(self._reference))
        return self._vector

    def numpy(self) -> NDArray[Any]:
        """Return the vector: Flower's name for it."""
        return self.vector

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[Any, ...]]:
        return SharedArray, (None, self._reference) if self._reference is not None else (self._vector, None)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"SharedArray({'posted' if self._vector is None else self._vector.shape})"
