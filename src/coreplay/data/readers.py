"""From files to raw columns: JSON lines, CSV and Parquet, the roles that their columns play, and their times."""

import csv
import gzip
import json
import math
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from coreplay.data.samples import Ints
from coreplay.errors import InputError, unknown
from coreplay.files import reading

LONGEST = 2**20  # bytes of a line; a sample is a sentence or a page, not a book
_KINDS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".parquet")
_DEFAULTS = ("label", "timestamp", "period", "split")
_LAST = 253402300800  # the year 10000, which milliseconds taken for seconds pass


@dataclass(frozen=True)
class Columns:
    """Which column of a file plays which role.

    A role that is None takes the column of the role's own name if there is one (`label`, `timestamp`, `period`,
    `split`); "" leaves the role out. `order` has no default.

    >>> Columns(text="subject", label="").roles(["client_id", "subject", "period", "label"])
    {'client': 'client_id', 'text': 'subject', 'period': 'period'}
    """

    client: str = "client_id"
    text: str = "text"
    label: str | None = None
    timestamp: str | None = None
    period: str | None = None
    split: str | None = None
    order: str | None = None

    def roles(self, available: list[str], where: str = "") -> dict[str, str]:
        """Return the column of each role; a column that was asked for must be there."""
        found: dict[str, str] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if column is None and field.name in _DEFAULTS and field.name in available:
                column = field.name
            if column in available:
                found[field.name] = column
            elif column:
                raise InputError(
                    f"{where}{unknown('column', column, available)}: it is needed for the {field.name}; name another "
                    f"column with columns={{{field.name!r}: ...}}"
                )
        return found


@dataclass(frozen=True)
class RawColumns:
    """Columns by role, as they were read, and a function that says where row k came from."""

    columns: dict[str, list[Any]]
    where: Callable[[int], str]
    names: dict[str, str]

    def __len__(self) -> int:
        return len(self.columns["text"])

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    def check(self, role: str, fits: Callable[[Any], bool], problem: str) -> None:
        """Raise the error for the first value that does not fit; types are looked at first, which is fast."""
        values = self.columns[role]
        examples = dict(zip(map(type, values), values, strict=True))
        if not all(map(fits, examples.values())):
            raise self.error(next(k for k, value in enumerate(values) if not fits(value)), role, problem)

    def error(self, row: int, role: str, problem: str) -> InputError:
        """Return the error for one value: file, line, column, value, remedy."""
        value = _short(repr(self.columns[role][row]))
        return InputError(f"{self.where(row)}: column {self.names[role]!r} is {value}: {problem}")


def read_files(paths: Sequence[Path], columns: Columns) -> RawColumns:
    """Read files of any of the kinds, which need the same columns, one after the other."""
    parts = []
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: does not exist or is no file: pass {', '.join(_KINDS)}")
        kind = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
        if kind not in _KINDS:
            raise InputError(f"{path}: unknown kind of file {kind!r}: use one of {', '.join(_KINDS)}")
        if kind == ".parquet":
            parts.append(_read_parquet(path, columns))
        else:
            parts.append(_collected(path, _csv_rows(path) if "csv" in kind else _json_rows(path), columns))
    if not parts:
        raise InputError("path must name at least one file: got none")
    return parts[0] if len(parts) == 1 else _concatenated(parts)


def _concatenated(parts: list[RawColumns]) -> RawColumns:
    for part in parts:
        if odd := sorted(set(part.columns) ^ set(parts[0].columns)):
            raise InputError(f"{part.where(0)}: the files differ in the columns for {', '.join(odd)}: name them alike")
    starts = [0, *accumulate(map(len, parts))]

    def where(row: int) -> str:
        k = bisect_right(starts, row) - 1
        return parts[k].where(row - starts[k])

    joined = {role: [value for part in parts for value in part.columns[role]] for role in parts[0].columns}
    return RawColumns(joined, where, parts[0].names)


def _collected(path: Path, rows: Iterable[tuple[int, dict[str, Any]]], columns: Columns) -> RawColumns:
    """Keep the columns that have a role, and the line of each row."""
    roles: dict[str, str] = {}
    kept: dict[str, list[Any]] = {}
    numbers: list[int] = []
    for number, row in rows:
        if not roles:
            roles = columns.roles(list(row), f"{path}:{number}: ")
            kept = {role: [] for role in roles}
        try:
            for role, values in kept.items():
                values.append(row[roles[role]])
        except KeyError as error:
            raise InputError(f"{path}:{number}: column {error} is missing; other rows have it") from None
        numbers.append(number)
    if not numbers:
        raise InputError(f"{path}: has no rows")
    return RawColumns(kept, lambda k: f"{path}:{numbers[k]}", roles)


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}:{error.colno}: not JSON ({error.msg}): {_short(line)!r}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON ({error}): {_short(line)!r}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: must be an object with named columns: {_short(line)!r}")
        yield number, row


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))  # `lines` checks how long a line is
    reader = csv.reader((line + "\n" for _, line in lines(path)), strict=True)
    end = 0  # the line on which the last row ended
    try:
        names = next(reader, [])
        end = reader.line_num
        for values in reader:
            number, end = end + 1, reader.line_num
            if values and len(values) != len(names):
                problem = f"has {len(values)} values for {len(names)} columns: is a quote missing?"
                raise InputError(f"{path}:{number}: {problem}")
            if values:
                yield number, dict(zip(names, values, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}:{end + 1}: not CSV ({error})") from None


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _read_parquet(path: Path, columns: Columns) -> RawColumns:
    import pyarrow.parquet as pq

    with reading(path, "Parquet"):
        roles = columns.roles(pq.read_schema(path).names, f"{path}: ")
        return from_table(pq.read_table(path, columns=list(dict.fromkeys(roles.values()))), roles, str(path))


def from_table(table: Any, roles: dict[str, str], name: str) -> RawColumns:
    """Return the columns of an arrow table by role."""
    if table.num_rows == 0:
        raise InputError(f"{name}: has no rows")
    columns = {role: table.column(column).to_pylist() for role, column in roles.items()}
    return RawColumns(columns, lambda k: f"{name}: row {k + 1}", roles)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Iterate over (line number from 1, line without its end), none of which is read further than it may be long."""
    number = 0
    try:
        with cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb") as stream:
            for number, raw in enumerate(iter(partial(stream.readline, LONGEST + 1), b""), 1):
                line = raw.removesuffix(b"\n")
                if len(line) > LONGEST:
                    problem = f"the line is longer than {LONGEST} bytes: each line must hold one sample"
                    raise InputError(f"{path}:{number}: {problem}")
                try:
                    yield number, line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    problem = f"byte {line[error.start]:#04x} is not UTF-8: convert the file to UTF-8"
                    raise InputError(f"{path}:{number}:{error.start + 1}: {problem}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}:{number + 1}: can't be read: {error}") from None


def unix_seconds(raw: RawColumns) -> Ints:
    """Return the Unix seconds of each row; a column wholly without zones is read as UTC.

    Zones may differ. A column that mixes times with and without a zone is an error: rows could be hours apart.
    """
    given = raw.columns["timestamp"]
    if set(map(type, given)) == {int} and -_LAST < min(given) <= max(given) < _LAST:
        return np.array(given, dtype=np.int64)
    seconds = np.empty(len(raw), dtype=np.int64)
    first = ""
    for k, value in enumerate(given):
        try:
            seconds[k], kind = _parsed_time(value)
        except (ValueError, OverflowError, TypeError) as error:
            problem = f"not a time ({error}): use Unix seconds or 2026-11-15T09:30:00+00:00"
            raise raw.error(k, "timestamp", problem) from None
        first = first or kind
        if kind != first:
            raise raw.error(k, "timestamp", f"this is {kind}, but {raw.where(0)} has {first}: make all rows alike")
    return seconds


def moment(value: str | int | float | date) -> int:
    """Return the Unix seconds of one time, such as the start of the first period.

    >>> moment("2021-09-17"), moment("2021-09-17T02:00:00+02:00")
    (1631836800, 1631836800)
    """
    try:
        return _parsed_time(value)[0]
    except (ValueError, TypeError, OverflowError) as error:
        problem = f"a time must be Unix seconds or ISO 8601, such as 2021-09-17: got {value!r} ({error})"
        raise InputError(problem) from None


def _parsed_time(value: Any) -> tuple[int, str]:
    """Return the Unix seconds of a time, and what kind of time it is."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = datetime.fromisoformat(value.strip())
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return math.floor(value.replace(tzinfo=UTC).timestamp()), "a time without a zone"
        return math.floor(value.timestamp()), "a time with a zone"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a {type(value).__name__}")
    if not -_LAST < value < _LAST:
        raise ValueError("beyond the year 9999; are these milliseconds?")
    return math.floor(value), "Unix seconds"
