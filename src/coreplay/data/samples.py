"""Samples: rows of a stream or of a pool, as columns of equal length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from coreplay.errors import InputError

Ints = NDArray[np.int64]
Content: TypeAlias = Any  # an arrow array of texts or a numpy array (arrow comes without types)
_COLUMNS = {"ids": np.uint64, "label": np.int64, "timestamp": np.int64, "arrived": np.int64, "weight": np.float32}
_UNKNOWN: Any = -1  # a single number stands for a column of it
_ONE: Any = 1


@dataclass(frozen=True, eq=False)
class Samples:
    """Some rows of a stream or of a pool, as columns of equal length.

    Parameters
    ----------
    content : arrow array of texts or (n, ...) array
        What the model reads.
    ids : (n,) array of uint64
        Numbers that depend only on (client, timestamp, content), and so name the sample in every run.
    label : (n,) array of int64
        Index into `label_names`, or -1 for a sample without a label.
    timestamp : (n,) array of int64
        Unix seconds, or -1 in a stream without times.
    label_names : tuple of str
        All labels of the stream.
    arrived : (n,) array of int64
        The period in which each sample arrived; -1 where it is unknown (the default).
    weight : (n,) array of float32
        The weight of each sample's loss, at least 0; 1 by default.
    extras : mapping of str to (n, ...) array of numbers
        Further columns, for instance outputs of the model that were stored with the samples.

    Examples
    --------
    >>> samples = Samples(pa.array(["hi", "stop"]), [7, 8], [-1, -1], [0, 60])
    >>> samples.with_columns(logits=np.eye(2))[[1]].extras["logits"].tolist()
    [[0.0, 1.0]]
    """

    content: Content
    ids: NDArray[np.uint64]
    label: Ints
    timestamp: Ints
    label_names: tuple[str, ...] = ()
    arrived: Ints = _UNKNOWN
    weight: NDArray[np.float32] = _ONE
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.content)
        for name, dtype in _COLUMNS.items():
            column = np.asarray(getattr(self, name), dtype=dtype)
            column = np.full(n, column) if column.ndim == 0 else column
            if column.shape != (n,):
                raise InputError(f"{name} must have one value per sample, shape ({n},): got shape {column.shape}")
            object.__setattr__(self, name, column)
        if not np.all((self.weight >= 0) & (self.weight < np.inf)):
            raise InputError(f"weight must be finite and at least 0: got {self.weight.min()} to {self.weight.max()}")
        arrays = {name: np.asarray(column) for name, column in self.extras.items()}
        extras = {name: np.asarray(column, dtype=column.dtype.newbyteorder("=")) for name, column in arrays.items()}
        for name, column in extras.items():
            if column.dtype.kind not in "biuf":
                raise InputError(f"extra column {name!r} must hold numbers: got dtype {column.dtype}")
            if column.shape[:1] != (n,):
                raise InputError(f"extra column {name!r} must have {n} rows, one per sample: got shape {column.shape}")
        object.__setattr__(self, "extras", extras)

    def __len__(self) -> int:
        return len(self.content)

    def __getitem__(self, rows: slice | ArrayLike) -> "Samples":
        """Return these rows: a slice is a view, a list of row numbers a copy of those rows."""
        which: Any = rows if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)
        if isinstance(which, slice) or isinstance(self.content, np.ndarray):
            content = self.content[which]
        else:
            content = self.content.take(pa.array(which))
        columns: dict[str, Any] = {name: getattr(self, name)[which] for name in _COLUMNS}
        extras = {name: column[which] for name, column in self.extras.items()}
        return replace(self, content=content, extras=extras, **columns)

    def with_columns(self, **extras: NDArray[Any]) -> "Samples":
        """Return the samples with further columns of numbers, or with other values in those that they have."""
        return replace(self, extras={**self.extras, **extras})

    def replaced(self, *, weight: ArrayLike | None = None, arrived: ArrayLike | None = None) -> "Samples":
        """Return the samples with other weights or periods of arrival; a single number applies to all of them."""
        given: dict[str, Any] = {"weight": weight, "arrived": arrived}
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    @property
    def texts(self) -> list[str]:
        """The content as a list of Python strings."""
        if isinstance(self.content, np.ndarray):
            raise InputError(f"these samples are arrays of shape {self.content.shape[1:]}, not texts")
        return list(self.content.to_pylist())

    @property
    def labels(self) -> list[str | None]:
        """The labels as names; None where there is none."""
        return [self.label_names[k] if k >= 0 else None for k in self.label.tolist()]

    @staticmethod
    def joined(parts: Sequence["Samples"]) -> "Samples":
        """Return several runs of samples of one stream as one.

        A part without an extra column that another part has gets NaN in its rows. A column of integers has no value
        for "missing", so all parts must have it.
        """
        if not parts:
            raise InputError("joined needs at least one run of samples: got none")
        names = parts[0].label_names
        if any(part.label_names != names for part in parts):
            raise InputError("these samples have different label_names: join samples of one stream only")
        contents = [part.content for part in parts]
        content = np.concatenate(contents) if isinstance(contents[0], np.ndarray) else pa.concat_arrays(contents)
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        extras = {
            name: joined_column(name, [part.extras.get(name) for part in parts], [len(part) for part in parts])
            for name in dict.fromkeys(name for part in parts for name in part.extras)
        }
        return Samples(content, label_names=names, extras=extras, **columns)


def joined_column(name: str, parts: Sequence[NDArray[Any] | None], lengths: Sequence[int]) -> NDArray[Any]:
    """Return the parts of one extra column as one array; NaN for the rows of a part that is None."""
    there = [part for part in parts if part is not None]
    first = there[0]
    for part in there:
        if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
            raise InputError(
                f"extra column {name!r} must have rows of one shape and dtype: got {first.dtype}{first.shape[1:]} "
                f"and {part.dtype}{part.shape[1:]}"
            )
    missing = sum(n for part, n in zip(parts, lengths, strict=True) if part is None)
    if missing and first.dtype.kind != "f":
        raise InputError(
            f"extra column {name!r} of dtype {first.dtype} is missing in {missing} samples and can't be NaN there: "
            "add it to all samples, or use floating-point numbers"
        )
    rows = [
        np.full((n, *first.shape[1:]), np.nan if n else 0, dtype=first.dtype) if part is None else part
        for part, n in zip(parts, lengths, strict=True)
    ]
    return np.concatenate(rows)
