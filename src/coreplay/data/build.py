"""From raw columns to a stream: check every value, skip and count what is empty or twice there, cut, deal, limit."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data.partition import Clients, Cut, Periods, cut_as_given, cut_by_order, cut_by_time, limited, partition
from coreplay.data.readers import Columns, RawColumns, unix_seconds
from coreplay.data.samples import Ints
from coreplay.data.stream import MOST_PERIODS, SPLITS, FederatedStream
from coreplay.errors import InputError, unknown
from coreplay.validation import make_table

SHOWN = 20  # labels that an error lists


def build_stream(
    raw: RawColumns,
    periods: Periods | Mapping[str, Any] | None = None,
    clients: Clients | Mapping[str, Any] | None = None,
    labels: Sequence[str | int] | None = None,
) -> FederatedStream:
    """Make a stream of raw columns, or of those rows that have one of these `labels`; periods are those of all rows.

    Rows without text, and rows that repeat another in every column, time included, are skipped; notes count them.
    """
    when, who = make_table(Periods, periods, "periods"), make_table(Clients, clients, "clients")
    raw, notes = _cleaned(raw)
    if who.by == "column" and "client" not in raw:
        raise InputError("clients come from a column, and there is none: name it, or deal rows with clients by label")
    if who.by not in ("column", "iid") and "label" not in raw:
        raise InputError(f"clients by {who.by} need a label column: name one with columns={{'label': ...}}")
    raw.check("text", lambda value: isinstance(value, str), "the text must be a string")
    texts = _characters(raw, "text", raw.columns["text"])
    label = _labels(raw) if "label" in raw else None
    wanted = np.ones(len(raw), dtype=bool) if labels is None else _wanted(label, labels)
    if not wanted.all():
        notes.append(f"{int((~wanted).sum())} of {len(raw)} rows have none of these labels: left out")
    seconds = unix_seconds(raw) if "timestamp" in raw else None
    cut = _cut(raw, when, seconds, texts)
    if who.by == "column":
        client = _clients(raw)
        odd = sorted(c for c in set(client) if {"/", "\\", "\0"} & set(c) or c in (".", ".."))
        if odd:
            what = f"{len(odd)} client ids look like paths, first {odd[0]!r}"
            notes.append(f"{what}: kept; ids are never used as file names")
    else:
        client = [""] * len(texts)  # nobody's, unless dealt out
        rows = np.flatnonzero(wanted).tolist()
        for row, name in zip(rows, partition([label[row] if label else None for row in rows], who), strict=True):
            client[row] = name
        owned = np.array(client) != ""
        if (wanted & ~owned).any():
            notes.append(f"{int((wanted & ~owned).sum())} rows have labels that no client was given: left out")
        wanted &= owned
    outside = np.flatnonzero((cut.period < 0) & wanted).tolist()
    notes += _counted("a time outside all periods", raw, outside, "left out")
    inside = np.flatnonzero((cut.period >= 0) & wanted)
    if not len(inside):
        raise InputError(f"no row lies in any period: {when}")
    kept, more = limited([client[k] for k in inside], cut.period[inside], cut.test[inside], who)
    chosen = inside[kept]
    if not len(chosen):
        raise InputError(f"the limits leave no client: {'; '.join(more)}")
    without = cut.periods - len(np.unique(cut.period[chosen]))
    if without:
        more.append(f"{without} of {cut.periods} periods have no row: other options of periods make fewer")
    return FederatedStream(
        [client[k] for k in chosen],
        cut.period[chosen],
        cut.test[chosen],
        [texts[k] for k in chosen],
        None if label is None else [label[k] for k in chosen],
        None if seconds is None else seconds[chosen],
        periods=cut.periods,
        notes=[*notes, *more],
    )


def wanted_columns(columns: Columns | Mapping[str, str] | None, clients: Clients | Mapping[str, Any] | None) -> Columns:
    """Return which column plays which role: none need be the client where a partitioner makes the clients."""
    found = make_table(Columns, columns, "columns")
    dealt = make_table(Clients, clients, "clients").by != "column"
    return replace(found, client="") if dealt and found.client == Columns.client else found


def _wanted(have: Sequence[str | None] | None, labels: Sequence[str | int]) -> NDArray[np.bool_]:
    """Return which rows have one of the labels."""
    if not labels:
        raise InputError('labels must be a list of at least one label, such as ["music", "news"]: got none')
    if have is None:
        raise InputError("labels need a label column: name one with columns={'label': ...}")
    known = {value for value in have if value is not None}
    chosen = {str(one) for one in labels}
    for one in sorted(chosen - known):
        if len(known) > SHOWN:
            raise InputError(f"unknown label {one!r}: it is none of {len(known)}, such as {min(known)!r}")
        raise unknown("label", one, known)
    return np.array([value in chosen for value in have])


def _cleaned(raw: RawColumns) -> tuple[RawColumns, list[str]]:
    """Leave out rows without text, and of rows with the same time and all, every one but the first."""
    for role in raw.columns:
        raw.check(role, lambda value: not isinstance(value, list | dict), "must be a string or a number, not several")
    kept: list[int] = []
    empty: list[int] = []
    twice: list[int] = []
    seen: set[tuple[Any, ...]] = set()
    for k, (text, row) in enumerate(zip(raw.columns["text"], zip(*raw.columns.values(), strict=True), strict=True)):
        if text is None or (isinstance(text, str) and not text.strip()):
            empty.append(k)
        elif "timestamp" in raw and row in seen:
            twice.append(k)
        else:
            seen.add(row)
            kept.append(k)
    if not kept:
        raise InputError(f"{raw.where(0)}: no row has a text")
    notes = _counted("empty text", raw, empty, "skipped")
    notes += _counted("the same client, time, text and all", raw, twice, "skipped")
    if not notes:
        return raw, notes
    columns = {role: [values[k] for k in kept] for role, values in raw.columns.items()}
    return RawColumns(columns, lambda k: raw.where(kept[k]), raw.names), notes


def _counted(what: str, raw: RawColumns, rows: list[int], remedy: str) -> list[str]:
    """Return one note for all the rows, or none."""
    number = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    return [f"{what} in {number}, first at {raw.where(rows[0])}: {remedy}"] if rows else []


def _characters(raw: RawColumns, role: str, values: list[str]) -> list[str]:
    """Return the values of a column, after checking that they are characters, which can be written."""
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        row = next(k for k, value in enumerate(values) if re.search("[\ud800-\udfff]", value))
        raise raw.error(row, role, "holds half of a surrogate pair, which is no character") from None
    return values


def _labels(raw: RawColumns) -> list[str | None]:
    """Return the labels; an empty one, all that a CSV file has for it, is none."""
    values = raw.columns["label"]
    for k, value in enumerate(values):
        if isinstance(value, float) and math.isnan(value):
            raise raw.error(k, "label", "it must not be NaN; leave it empty")
    return [label or None for label in _characters(raw, "label", ["" if v is None else str(v) for v in values])]


def _clients(raw: RawColumns) -> list[str]:
    problem = "the client must be a string or a whole number"
    raw.check("client", lambda value: isinstance(value, str | int) and not isinstance(value, bool), problem)
    clients = [str(client) for client in raw.columns["client"]]
    if "" in clients:
        raise raw.error(clients.index(""), "client", problem)
    return _characters(raw, "client", clients)


def _cut(raw: RawColumns, rule: Periods, seconds: Ints | None, texts: list[str]) -> Cut:
    """Give every row its period, and say whether it tests."""
    if "split" in raw and rule.test is None:
        for k, value in enumerate(raw.columns["split"]):
            if value not in SPLITS:
                raise raw.error(k, "split", "must be 'train' or 'test'")
        cut = _cut(raw, replace(rule, test=0.0), seconds, texts)
        return replace(cut, test=np.array([value == "test" for value in raw.columns["split"]]))
    kind = rule.kind(set(raw.columns))
    if kind == "time":
        assert seconds is not None  # kind() has seen the column
        return cut_by_time(seconds, rule)
    if kind == "order":
        return cut_by_order(_numbers(raw, "order"), rule)
    period = _numbers(raw, "period")
    bad = np.flatnonzero((period < 0) | (period != np.floor(period)) | (period >= MOST_PERIODS))
    if len(bad):
        raise raw.error(int(bad[0]), "period", f"periods must be whole numbers, 0 to {MOST_PERIODS - 1}")
    return cut_as_given(period.astype(np.int64), seconds, texts, rule)


def _numbers(raw: RawColumns, role: str) -> NDArray[np.float64]:
    values = np.array([_number(value) for value in raw.columns[role]])
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise raw.error(int(bad[0]), role, "must be a number")
    return values


def _number(value: Any) -> float:
    try:
        return np.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan
