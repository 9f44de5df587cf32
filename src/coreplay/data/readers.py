"""Readers of JSON lines, CSV and Parquet: files in, raw columns out."""

import csv
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coreplay.data.columns import Columns, Raw
from coreplay.data.lines import LONGEST, lines
from coreplay.errors import InputError
from coreplay.files import reading

Row = dict[str, Any]


def read_files(paths: Sequence[Path], columns: Columns, longest: int = LONGEST) -> Raw:
    """Read files of any of the kinds, which need the same columns, one after the other."""
    parts = []
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: does not exist or is no file: pass .jsonl, .jsonl.gz, .csv, .csv.gz or .parquet")
        kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        if kind not in _READERS or path.name.endswith(".parquet.gz"):
            usual = f"{', '.join(_READERS)}; all but .parquet also with .gz"
            raise InputError(f"{path}: unknown kind of file {''.join(path.suffixes[-2:])!r}: use one of {usual}")
        parts.append(_READERS[kind](path, columns, longest))
    if len(parts) == 1:
        return parts[0]
    return _concatenated(parts)


def _concatenated(parts: list[Raw]) -> Raw:
    if not parts:
        raise InputError("path must name at least one file: got none")
    for part in parts:
        if set(part.columns) != set(parts[0].columns):
            odd = sorted(set(part.columns) ^ set(parts[0].columns))
            raise InputError(f"{part.where(0)}: the files differ in the columns for {', '.join(odd)}: name them alike")
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part))

    def where(row: int) -> str:
        k = bisect_right(starts, row) - 1
        return parts[k].where(row - starts[k])

    joined = {role: [value for part in parts for value in part.columns[role]] for role in parts[0].columns}
    return Raw(joined, where, parts[0].names)


def _collected(path: Path, rows: Iterable[tuple[int, Row]], columns: Columns) -> Raw:
    """Keep the columns that have a role, and the line of each row."""
    roles: dict[str, str] = {}
    kept: list[tuple[str, list[Any]]] = []
    numbers: list[int] = []
    for number, row in rows:
        if not roles:
            roles = columns.roles(list(row), f"{path}:{number}: ")
            kept = [(roles[role], []) for role in roles]
        try:
            for column, values in kept:
                values.append(row[column])
        except KeyError as error:
            raise InputError(f"{path}:{number}: column {error} is missing; other rows have it") from None
        numbers.append(number)
    if not numbers:
        raise InputError(f"{path}: has no rows")
    return Raw(dict(zip(roles, (v for _, v in kept), strict=True)), lambda k: f"{path}:{numbers[k]}", roles)


def _read_jsonl(path: Path, columns: Columns, longest: int) -> Raw:
    def rows() -> Iterator[tuple[int, Row]]:
        for number, line in lines(path, longest):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                column = f":{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
                reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise InputError(f"{path}:{number}{column}: not JSON ({reason}): {_shown(line)}") from None
            if not isinstance(row, dict):
                raise InputError(f"{path}:{number}: must be an object with named columns: {_shown(line)}")
            yield number, row

    return _collected(path, rows(), columns)


def _shown(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")


def _read_csv(path: Path, columns: Columns, longest: int) -> Raw:
    def rows() -> Iterator[tuple[int, Row]]:
        csv.field_size_limit(max(longest, csv.field_size_limit()))  # how long a line may be is checked there
        reader = csv.reader((line + "\n" for _, line in lines(path, longest)), strict=True)
        before = 0
        names: list[str] | None = None
        try:
            for values in reader:
                number, before = before + 1, reader.line_num
                if names is None:
                    names = values
                elif values and len(values) != len(names):
                    raise InputError(
                        f"{path}:{number}: has {len(values)} values for {len(names)} columns: is a quote missing?"
                    )
                elif values:
                    yield number, dict(zip(names, values, strict=True))
        except csv.Error as error:
            raise InputError(f"{path}:{before + 1}: not CSV ({error})") from None

    return _collected(path, rows(), columns)


def _read_parquet(path: Path, columns: Columns, longest: int) -> Raw:
    import pyarrow.parquet as pq

    with reading(path, "Parquet"):
        roles = columns.roles(pq.read_schema(path).names, f"{path}: ")
        table = pq.read_table(path, columns=list(dict.fromkeys(roles.values())))
        return from_table(table, roles, lambda k: f"{path}: row {k + 1}")


def from_table(table: Any, roles: dict[str, str], where: Callable[[int], str]) -> Raw:
    """Return the columns of an arrow table by role."""
    if table.num_rows == 0:
        raise InputError(f"{where(0).partition(': row')[0]}: has no rows")
    return Raw({role: table.column(column).to_pylist() for role, column in roles.items()}, where, roles)


_READERS: dict[str, Callable[[Path, Columns, int], Raw]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_jsonl,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
