"""The stream: the whole data set, sample by sample, by client, period and split.

Rows lie sorted by (client, period, split) in a few columns, and an index says where each cell begins. So the samples
of a cell are slices of the columns: nothing is copied, and finding them takes the same time in any stream.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from coreplay.data.samples import Content, Ints, Samples
from coreplay.errors import InputError, unknown
from coreplay.validation import check_value

SPLITS = ("train", "test")
MOST_PERIODS = 100_000
MOST_CELLS, CELLS_PER_SAMPLE = 2**24, 64


class FederatedStream:
    """Samples by (client, period, split).

    Parameters
    ----------
    client : (n,) sequence of str
        Who holds each row. Any string is allowed: ids are never used as file names.
    period : (n,) array
        The period in which each row arrived: 0, 1, ...
    test : (n,) array
        Whether each row is for testing.
    content : (n,) sequence of str or (n, ...) array
        The texts, or the images.
    label : (n,) sequence of str or None, optional
        The label of each row, None where there is none.
    timestamp : (n,) array, optional
        Unix seconds.
    periods : int, optional
        How many there are, if the last ones may be empty.
    label_names : sequence of str, optional
        All labels that there are, if some may be in no row; by default those of the rows.
    notes : sequence of str
        What was skipped while the stream was made.

    Examples
    --------
    >>> stream = FederatedStream(["bo", "al", "bo"], [0, 0, 1], [False, False, True], ["hi", "play jazz", "stop"])
    >>> stream
    FederatedStream(2 clients, 2 periods, 2 train + 1 test samples)
    >>> stream.samples("bo", 0).texts
    ['hi']
    >>> stream.counts("train").tolist()
    [[1, 0], [1, 0]]
    """

    def __init__(
        self,
        client: Sequence[str],
        period: Sequence[int] | NDArray[Any],
        test: Sequence[bool] | NDArray[Any],
        content: Content,
        label: Sequence[str | None] | None = None,
        timestamp: Sequence[int] | NDArray[Any] | None = None,
        *,
        periods: int | None = None,
        label_names: Sequence[str] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        n = len(client)
        if n == 0:
            raise InputError("a stream needs at least one sample: got none")
        when = np.asarray(period, dtype=np.int64)
        columns = {"period": period, "test": test, "content": content, "label": label, "timestamp": timestamp}
        for name, column in columns.items():
            if column is not None and len(column) != n:
                raise InputError(f"{name} must be as long as client, {n}: got {len(column)}")
        self.periods = int(when.max()) + 1 if periods is None else periods
        check_value(self.periods, int, "periods")
        if self.periods > MOST_PERIODS:
            raise InputError(f"periods must be at most {MOST_PERIODS}: got {self.periods}")
        if when.min() < 0 or when.max() >= self.periods:
            raise InputError(f"periods must be 0 to {self.periods - 1}: got {when.min()} to {when.max()}")
        self.clients, who = _codes(client)
        cells = len(self.clients) * self.periods
        if cells > max(MOST_CELLS, CELLS_PER_SAMPLE * n):  # each takes memory, also where it is empty
            problem = f"{len(self.clients)} clients x {self.periods} periods are {cells} cells for {n} samples"
            raise InputError(f"{problem}: make fewer and longer periods")
        self.label_names, what = _codes([None] * n if label is None else label, label_names)
        cell = (who * self.periods + when) * 2 + np.asarray(test, dtype=bool)
        times = np.full(n, -1, dtype=np.int64) if timestamp is None else np.asarray(timestamp, dtype=np.int64)
        order = np.lexsort((times, cell))
        arrays = isinstance(content, np.ndarray)
        self.content: Content = content[order] if arrays else pa.array(content, pa.large_string()).take(order)
        self.label, self.timestamp = what[order], times[order]
        self.has_times = timestamp is not None
        self._cells = cell[order]
        self._starts = np.searchsorted(self._cells, np.arange(2 * len(self.clients) * self.periods + 1))
        self.notes = tuple(notes)
        self._client_numbers = {name: k for k, name in enumerate(self.clients)}

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        samples = f"{int((~self.test).sum())} train + {int(self.test.sum())} test samples"
        return f"FederatedStream({len(self.clients)} clients, {self.periods} periods, {samples})"

    @property
    def test(self) -> NDArray[np.bool_]:
        """Which rows are for testing."""
        return np.asarray(self._cells % 2 == 1)

    @property
    def period(self) -> Ints:
        """The period of each row."""
        return np.asarray(self._cells // 2 % self.periods)

    @property
    def client_number(self) -> Ints:
        """The client of each row, as an index into `clients`."""
        return np.asarray(self._cells // (2 * self.periods))

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        """The number of each row that depends on (client, timestamp, content) and on nothing else in the stream."""
        seen: Counter[bytes] = Counter()
        ids = np.empty(len(self), dtype=np.uint64)
        contents = self.content if isinstance(self.content, np.ndarray) else self.content.to_pylist()
        rows = zip(self.client_number.tolist(), self.timestamp.tolist(), contents, strict=True)
        for k, (client, time, content) in enumerate(rows):
            digest = hashlib.blake2b(f"{self.clients[client]}\0{time}\0".encode("utf-8", "surrogatepass"))
            digest.update(content.encode() if isinstance(content, str) else np.ascontiguousarray(content).tobytes())
            key = digest.digest()
            if seen[key]:  # the same words again: another sample
                digest.update(b"\0%d" % seen[key])
            seen[key] += 1
            ids[k] = int.from_bytes(digest.digest()[:8], "little")
        return ids

    def counts(self, split: str | None = None) -> Ints:
        """Return how many samples each client has in each period, in one split or in both: (clients, periods)."""
        sizes = np.diff(self._starts).reshape(len(self.clients), self.periods, 2)
        return np.asarray(sizes.sum(axis=2) if split is None else sizes[:, :, _split(split)])

    def samples(self, client: str, period: int, split: str = "train") -> Samples:
        """Return the samples of one cell: slices of the stream's columns, ordered by time."""
        cell = self._number(client) * 2 * self.periods + self._cell(period, split)
        return self._rows(slice(int(self._starts[cell]), int(self._starts[cell + 1])))

    def of_period(self, period: int, split: str = "train") -> Samples:
        """Return the samples of all clients in one period, client by client."""
        return self.all()[np.flatnonzero(self._cells % (2 * self.periods) == self._cell(period, split))]

    def all(self) -> Samples:
        """Return every sample, without copying."""
        return self._rows(slice(None))

    def only(self, clients: Sequence[str]) -> "FederatedStream":
        """Return the stream of some of the clients.

        >>> stream = FederatedStream(["bo", "al", "bo"], [0, 0, 1], [False] * 3, ["hi", "stop", "go on"])
        >>> stream.only(["bo"])
        FederatedStream(1 clients, 2 periods, 2 train + 0 test samples)
        """
        rows = np.flatnonzero(np.isin(self.client_number, [self._number(client) for client in clients]))
        samples = self.all()[rows]
        return FederatedStream(
            [self.clients[k] for k in self.client_number[rows].tolist()],
            self.period[rows],
            self.test[rows],
            samples.content,
            samples.labels if self.label_names else None,
            samples.timestamp if self.has_times else None,
            periods=self.periods,
            label_names=self.label_names or None,
            notes=self.notes,
        )

    def cells(self, split: str = "train") -> Iterator[tuple[str, int, Samples]]:
        """Go through the (client, period, samples) that are not empty."""
        for k, t in np.argwhere(self.counts(split)):
            yield self.clients[k], int(t), self.samples(self.clients[k], int(t), split)

    def _number(self, client: str) -> int:
        if client not in self._client_numbers:
            raise unknown("client", client, self.clients[:20])
        return self._client_numbers[client]

    def _cell(self, period: int, split: str) -> int:
        """Return the number of a cell among those of its client."""
        if not 0 <= period < self.periods:
            raise InputError(f"period must be 0 to {self.periods - 1}: got {period}")
        return 2 * period + _split(split)

    def _rows(self, rows: slice) -> Samples:
        arrived = self._cells[rows] // 2 % self.periods
        columns = (self.label[rows], self.timestamp[rows], self.label_names, arrived)
        return Samples(self.content[rows], self.ids[rows], *columns)


def _split(split: str) -> int:
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    return SPLITS.index(split)


def _codes(values: Sequence[str | None], names: Sequence[str] | None = None) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct values, sorted unless `names` gives them, and the number of each value; None is -1."""
    known = tuple(sorted({value for value in values if value is not None})) if names is None else tuple(names)
    numbers: dict[str | None, int] = {name: k for k, name in enumerate(known)} | {None: -1}
    return known, np.fromiter((numbers[value] for value in values), dtype=np.int64, count=len(values))
