"""From raw columns to a stream: check every value, skip and count what is empty or twice there, cut, deal, limit."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data.partition import (
    Clients,
    Cut,
    Periods,
    by_text,
    cut_by_order,
    cut_by_time,
    last_of_each,
    limited,
    partition,
)
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
    texts = _texts(raw)
    label = _labels(raw) if "label" in raw else None
    wanted = np.ones(len(raw), dtype=bool) if labels is None else _wanted(label, labels)
    if not wanted.all():
        notes.append(f"{int((~wanted).sum())} of {len(raw)} rows have none of these labels: left out")
    seconds = unix_seconds(raw) if "timestamp" in raw else None
    cut = _cut(raw, when, seconds)
    test = _tests(raw, when, cut, seconds, texts)
    if who.by == "column":
        client = _clients(raw)
        odd = sorted({c for c in set(client) if {"/", "\\", "\0"} & set(c) or c in (".", "..")})
        if odd:
            notes.append(
                f"{len(odd)} client ids look like paths, first {odd[0]!r}: kept; ids are never used as file names"
            )
    else:
        client = _dealt(label or [None] * len(texts), wanted, who)
        owned = np.array([name != "" for name in client])
        if (wanted & ~owned).any():
            notes.append(f"{int((wanted & ~owned).sum())} rows have labels that no client was given: left out")
        wanted &= owned
    outside = np.flatnonzero((cut.period < 0) & wanted)
    notes += _counted("a time outside all periods", [raw.where(int(k)) for k in outside], "left out")
    inside = np.flatnonzero((cut.period >= 0) & wanted)
    if not len(inside):
        raise InputError(f"no row lies in any period: {when}")
    kept, more = limited([client[k] for k in inside], cut.period[inside], test[inside], who)
    rows = inside[kept]
    if not len(rows):
        raise InputError(f"the limits leave no client: {'; '.join(more)}")
    without = cut.periods - len(np.unique(cut.period[rows]))
    if without:
        more = [*more, f"{without} of {cut.periods} periods have no row: other options of periods make fewer"]
    return FederatedStream(
        [client[k] for k in rows],
        cut.period[rows],
        test[rows],
        [texts[k] for k in rows],
        None if label is None else [label[k] for k in rows],
        None if seconds is None else seconds[rows],
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


def _dealt(labels: Sequence[str | None], wanted: NDArray[np.bool_], rule: Clients) -> list[str]:
    """Deal the wanted rows out; the others belong to nobody."""
    rows = np.flatnonzero(wanted).tolist()
    client = [""] * len(labels)
    for row, name in zip(rows, partition([labels[row] for row in rows], rule), strict=True):
        client[row] = name
    return client


def _cleaned(raw: RawColumns) -> tuple[RawColumns, list[str]]:
    """Leave out rows without text, and of rows with the same time and all, every one but the first."""
    for role in raw.columns:
        raw.check(role, lambda value: not isinstance(value, list | dict), "must be a string or a number, not several")
    texts = raw.columns["text"]
    empty = {k for k, text in enumerate(texts) if text is None or (isinstance(text, str) and not text.strip())}
    twice: set[int] = set()
    if "timestamp" in raw:
        first: dict[tuple[Any, ...], int] = {}
        for k, row in enumerate(zip(*raw.columns.values(), strict=True)):
            if first.setdefault(row, k) != k and k not in empty:
                twice.add(k)
    notes = _counted("empty text", [raw.where(k) for k in sorted(empty)], "skipped")
    notes += _counted("the same client, time, text and all", [raw.where(k) for k in sorted(twice)], "skipped")
    if not notes:
        return raw, notes
    kept = [k for k in range(len(raw)) if k not in empty and k not in twice]
    if not kept:
        raise InputError(f"{raw.where(0)}: no row has a text")
    columns = {role: [values[k] for k in kept] for role, values in raw.columns.items()}
    return RawColumns(columns, lambda k: raw.where(kept[k]), raw.names), notes


def _texts(raw: RawColumns) -> list[str]:
    raw.check("text", lambda value: isinstance(value, str), "the text must be a string")
    return _characters(raw, "text", raw.columns["text"])


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
    nan = [k for k, value in enumerate(values) if isinstance(value, float) and math.isnan(value)]
    if nan:
        raise raw.error(nan[0], "label", "it must not be NaN; leave it empty")
    _characters(raw, "label", ["" if value is None else str(value) for value in values])
    return [None if value in (None, "") else str(value) for value in values]


def _clients(raw: RawColumns) -> list[str]:
    problem = "the client must be a string or a whole number"
    raw.check("client", lambda value: isinstance(value, str | int) and not isinstance(value, bool), problem)
    clients = [str(client) for client in raw.columns["client"]]
    if "" in clients:
        raise raw.error(clients.index(""), "client", problem)
    return _characters(raw, "client", clients)


def _cut(raw: RawColumns, rule: Periods, seconds: Ints | None) -> Cut:
    kind = rule.kind(set(raw.columns))
    if kind == "time":
        assert seconds is not None  # kind() has seen the column
        return cut_by_time(seconds, rule)
    if kind == "order":
        return cut_by_order(_numbers(raw, "order"), rule)
    period = _numbers(raw, "period")
    bad = np.flatnonzero((period < 0) | (period != np.floor(period)) | (period >= MOST_PERIODS))
    if len(bad):
        raise raw.error(int(bad[0]), "period", "periods must be whole numbers, 0 to 99999")
    whole = period.astype(np.int64)
    number = int(whole.max()) + 1 if rule.number is None else rule.number
    return Cut(np.where(whole < number, whole, -1), np.zeros(len(whole), dtype=bool), number)


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


def _tests(raw: RawColumns, rule: Periods, cut: Cut, seconds: Ints | None, texts: list[str]) -> NDArray[np.bool_]:
    """Return which rows test."""
    if "split" in raw and rule.test is None:
        if not set(raw.columns["split"]) <= set(SPLITS):
            row = next(k for k, value in enumerate(raw.columns["split"]) if value not in SPLITS)
            raise raw.error(row, "split", "must be 'train' or 'test'")
        return np.array([value == "test" for value in raw.columns["split"]])
    if rule.kind(set(raw.columns)) != "given":
        return cut.test
    if seconds is None:
        return by_text(texts, rule.test_fraction)
    return last_of_each(cut.period, seconds, rule.test_fraction)


def _counted(what: str, places: list[str], remedy: str) -> list[str]:
    """Return one note for all the places, or none.

    >>> _counted("empty text", ["a.jsonl:3", "a.jsonl:9"], "skipped")
    ['empty text in 2 rows, first at a.jsonl:3: skipped']
    """
    rows = "1 row" if len(places) == 1 else f"{len(places)} rows"
    return [f"{what} in {rows}, first at {places[0]}: {remedy}"] if places else []
