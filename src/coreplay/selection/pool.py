"""The pool: what a client can choose from at the end of a period, checked and normalised once for all selectors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay.array_types import Bools, Floats, Ints, Vector
from coreplay.errors import InputError
from coreplay.validation import whole_number

Column: TypeAlias = ArrayLike | Callable[[], ArrayLike | None]


@runtime_checkable
class HasGram(Protocol):
    """A gradient matrix: anything that gives the gram of its unit columns and knows their number."""

    def gram(self) -> Any:
        """Return GᵀG."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Pool:
    """The samples that a selector chooses from: their gradients, and what else is known of them.

    Attributes
    ----------
    size : int
        Number of samples n.
    unit : (n, d) array or None
        Unit gradients, one row per sample; zero rows for zero gradients.
    new : (n,) bool array or None
        Which samples arrived in this period; the others come from the buffer.
    seen : int or None
        How many samples the client saw before this period, kept or not.
    columns : mapping of str to (n, ...) array or function
        Further columns, one row per sample: read them with `column`. A run gives `label`, `arrived` (the period of
        arrival), `timestamp`, `weight`, `losses` (at the model that was just trained), `norms` (lengths of the
        gradients), `features` (of the task, if it has any) and whatever was stored with the samples. A function is
        called when the column is first read.
    method : str
        The selector that the pool is for, which errors name.
    """

    size: int
    unit: Vector | None = None
    given_gram: Floats | HasGram | None = None
    new: Bools | None = None
    seen: int | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    method: str = ""
    _read: dict[str, NDArray[Any] | None] = field(default_factory=dict, repr=False)

    @cached_property
    def gram(self) -> Floats:
        """The cosines between the gradients of all samples, n x n; a zero gradient is similar to nothing.

        A gradient matrix is asked for them on first use, which a random choice never makes.
        """
        if isinstance(self.given_gram, HasGram):
            gram = _cosines(self.given_gram.gram())
            if len(gram) != self.size:
                raise InputError(f"gram must have one row per sample: got {len(gram)} rows for a pool of {self.size}")
            return gram
        if self.given_gram is not None:
            return self.given_gram
        assert self.unit is not None, "a pool is made from gradients or from a gram"
        return np.ascontiguousarray(self.unit @ self.unit.T, dtype=np.float64)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, one row per sample; it is an error if the pool does not have it."""
        found = self.find_column(name)
        if found is None:
            known = ", ".join(repr(other) for other in self.columns if other != name) or "none"
            raise InputError(
                f"method {self.method!r} needs the column {name!r}, which this pool does not have (known: {known}): "
                f"pass columns={{{name!r}: ...}}, one row per sample"
            )
        return found

    def find_column(self, name: str) -> NDArray[Any] | None:
        """Return a column, or None if the pool does not have it."""
        if name not in self._read:
            given = self.columns.get(name)
            value = given() if callable(given) else given
            column = None if value is None else np.asarray(value)
            if column is not None and column.shape[:1] != (self.size,):
                raise InputError(
                    f"column {name!r} must have one row per sample: got shape {column.shape} for a pool of {self.size}"
                )
            self._read[name] = column
        return self._read[name]

    def split(self) -> tuple[Ints, Ints]:
        """Return the indices of the new and of the old samples, for selectors that treat them differently."""
        if self.new is None:
            raise InputError(
                f"method {self.method!r} needs to know which samples are new: pass new=, one bool per sample"
            )
        return np.flatnonzero(self.new), np.flatnonzero(~self.new)

    def even_share(self, budget: int) -> float:
        """Return how many samples of a buffer would be new if all data seen so far had the same chance to be in it."""
        if self.seen is None:
            raise InputError(
                f"method {self.method!r} needs to know how many samples were seen in earlier periods: pass seen="
            )
        new, old = self.split()
        if self.seen < len(old):
            raise InputError(
                f"seen must be at least the number of old samples in the pool, {len(old)}: got {self.seen}"
            )
        return budget * len(new) / (len(new) + self.seen)

    def number_of_new(self, budget: int, share: float, rng: np.random.Generator) -> int:
        """Return how many new samples to keep: `share` on average, and as many as the old ones leave room for.

        A fraction is rounded up or down at random with its expectation kept; a part that is too short is filled up from
        the other.
        """
        new, old = self.split()
        wanted = int(share) + int(rng.random() < share - int(share))
        return min(max(wanted, budget - len(old)), len(new))


def make_pool(
    gradients: ArrayLike | HasGram | None = None,
    *,
    gram: ArrayLike | None = None,
    new: ArrayLike | None = None,
    seen: int | None = None,
    columns: Mapping[str, Column] | None = None,
) -> Pool:
    """Check what a user passed and make a pool of it; the parameters are those of `select`."""
    if (gradients is None) == (gram is None):
        raise InputError("pass either gradients= (one row per sample) or gram= (n x n), and not both")
    unit = None
    given: Floats | HasGram | None = None
    if gram is not None:
        given = _cosines(gram)
        size = len(given)
    elif isinstance(gradients, HasGram):
        given, size = gradients, len(gradients)
    else:
        unit = unit_rows(gradients, "gradients")
        size = len(unit)
    columns = dict(columns or {})
    if unit is not None:
        columns.setdefault("norms", partial(np.linalg.norm, gradients, axis=1))
    elif (norms := getattr(gradients, "norms", None)) is not None:
        columns.setdefault("norms", norms)
    new = None if new is None else _flags(new, size)
    pool = Pool(size, unit, given, new, None if seen is None else whole_number(seen, "seen", least=0), columns)
    for name, column in pool.columns.items():
        if not callable(column):
            pool.find_column(name)  # a wrong one is refused whatever the method
    return pool


def unit_rows(array: Any, name: str) -> Vector:
    """Return the rows scaled to length 1, zero rows left at zero, in the given precision.

    >>> unit_rows([[3.0, 4.0], [0.0, 0.0]], "gradients").tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    rows = _numbers(array, name)
    if rows.ndim != 2:
        raise InputError(f"{name} must have two dimensions, one row per sample: got shape {rows.shape}")
    if len(rows) == 0:
        raise InputError(f"{name} is empty, shape {rows.shape}: a pool needs at least one sample")
    if rows.shape[1] == 0:
        raise InputError(f"{name} has rows of length 0, shape {rows.shape}: pass at least one number per sample")
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        row = int(np.flatnonzero(~np.isfinite(largest[:, 0]))[0])
        raise InputError(f"{name} must be finite: row {row} has NaN or infinity; leave that sample out")
    scaled = rows / np.where(largest > 0, largest, 1)  # so that no square overflows or vanishes
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    scaled /= np.where(norms > 0, norms, 1)
    return scaled


def _numbers(array: Any, name: str) -> Vector:
    try:
        out = np.asarray(array)
    except ValueError:
        raise InputError(f"{name} must be an array of numbers: its rows differ in length") from None
    except RuntimeError as error:  # a torch tensor that requires grad
        raise InputError(f"{name} can't be read as an array: {error}") from None
    if out.dtype.kind not in "fiub":
        raise InputError(f"{name} must be an array of numbers: got dtype {out.dtype}")
    return out if out.dtype in (np.float32, np.float64) else out.astype(np.float64)


def _cosines(gram: Any) -> Floats:
    """Return the gram scaled to a unit diagonal (zero for zero gradients), after checking that it is a gram."""
    K = _numbers(gram, "gram").astype(np.float64, copy=False)
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise InputError(f"gram must be square: got shape {K.shape}")
    if len(K) == 0:
        raise InputError("gram is empty, shape (0, 0): a pool needs at least one sample")
    if not np.isfinite(K).all():
        row, column = np.argwhere(~np.isfinite(K))[0]
        raise InputError(f"gram must be finite: entry ({row}, {column}) is {K[row, column]}; leave that sample out")
    diagonal = K.diagonal()
    if (diagonal < 0).any():
        row = int(diagonal.argmin())
        raise InputError(f"gram needs a diagonal of squared norms: entry ({row}, {row}) is {diagonal[row]:g}")
    tolerance = 1e-4
    norms = np.sqrt(diagonal)
    scale = np.where(norms > 0, norms, 1)
    C = K / scale / scale[:, None]
    lopsided = np.abs(C - C.T)
    if lopsided.max() > tolerance:
        row, column = np.unravel_index(int(lopsided.argmax()), K.shape)
        raise InputError(
            f"gram must be symmetric: entry ({row}, {column}) is {K[row, column]:g} "
            f"but ({column}, {row}) is {K[column, row]:g}"
        )
    excess = np.abs(C)
    silent = norms == 0
    excess[silent] = 2.0 * (np.abs(K[silent]) > tolerance * diagonal.max())  # a zero gradient is similar to nothing
    if excess.max() > 1 + tolerance:
        row, column = np.unravel_index(int(excess.argmax()), K.shape)
        raise InputError(
            f"gram is not a gram matrix: entry ({row}, {column}) is {K[row, column]:g}, more than the product "
            f"{norms[row] * norms[column]:g} of the two norms on its diagonal; was the diagonal changed?"
        )
    C = (C + C.T) / 2
    C[silent] = C[:, silent] = 0.0
    return np.ascontiguousarray(C)


def _flags(new: Any, size: int) -> Bools:
    flags = np.asarray(new)
    if flags.dtype != np.bool_ and not (flags.dtype.kind in "iu" and np.isin(flags, (0, 1)).all()):
        raise InputError(f"new must hold True or False for each sample: got dtype {flags.dtype}")
    if flags.shape != (size,):
        raise InputError(f"new must have one entry per sample: got shape {flags.shape} for a pool of {size}")
    return flags.astype(np.bool_)
