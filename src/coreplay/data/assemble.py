"""From raw columns to a stream: check every value, skip and count what is empty or twice there, cut, deal, limit."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data.clients import Clients, limited, partition
from coreplay.data.columns import Raw
from coreplay.data.notes import counted
from coreplay.data.periods import Cut, Periods, by_text, cut_by_order, cut_by_time, last_of_each
from coreplay.data.stream import SPLITS, FederatedStream
from coreplay.data.times import unix_seconds
from coreplay.errors import InputError

Ints = NDArray[np.int64]
DUPLICATES = ("skip", "keep")


def assemble(
    raw: Raw,
    periods: Periods | Mapping[str, Any] | None = None,
    clients: Clients | Mapping[str, Any] | None = None,
    duplicates: str = "skip",
) -> FederatedStream:
    """Make a stream of raw columns.

    Rows without text are skipped, and so are rows that repeat another in every column, time included (without a time,
    to say a thing twice is no mistake); both are counted in the notes.
    """
    when, who = Periods.of(periods), Clients.of(clients)
    if duplicates not in DUPLICATES:
        raise InputError(f"duplicates must be 'skip' or 'keep': got {duplicates!r}")
    raw, notes = _cleaned(raw, duplicates)
    if who.by == "column" and "client" not in raw:
        raise InputError("clients come from a column, and there is none: name it, or deal rows with clients by label")
    if who.by not in ("column", "iid") and "label" not in raw:
        raise InputError(f"clients by {who.by} need a label column: name one with columns={{'label': ...}}")
    texts = [_text(raw, k) for k in range(len(raw))]
    labels = [None if value is None else str(value) for value in raw.columns["label"]] if "label" in raw else None
    seconds = unix_seconds(raw) if "timestamp" in raw else None
    cut = _cut(raw, when, seconds)
    test = _tests(raw, when, cut, seconds, texts)
    if who.by == "column":
        client = [_client(raw, k) for k in range(len(raw))]
        odd = sorted({c for c in client if {"/", "\\", "\0"} & set(c) or c in (".", "..")})
        if odd:
            notes.append(
                f"{len(odd)} client ids look like paths, first {odd[0]!r}: kept; ids are never used as file names"
            )
    else:
        client = partition(labels or [None] * len(texts), who)
    outside = np.flatnonzero(cut.period < 0)
    notes += counted("a time outside all periods", [raw.where(int(k)) for k in outside], "left out")
    inside = np.flatnonzero(cut.period >= 0)
    if not len(inside):
        raise InputError(f"no row lies in any period: {when}")
    kept, more = limited([client[k] for k in inside], cut.period[inside], test[inside], who)
    rows = inside[kept]
    if not len(rows):
        raise InputError(f"the limits leave no client: {'; '.join(more)}")
    return FederatedStream(
        [client[k] for k in rows],
        cut.period[rows],
        test[rows],
        [texts[k] for k in rows],
        None if labels is None else [labels[k] for k in rows],
        None if seconds is None else seconds[rows],
        periods=cut.periods,
        notes=[*notes, *more],
    )


def _cleaned(raw: Raw, duplicates: str) -> tuple[Raw, list[str]]:
    """Leave out rows without text and rows that are twice there."""
    empty, twice, kept = [], [], []
    seen: set[tuple[Any, ...]] = set()
    check = duplicates == "skip" and "timestamp" in raw
    for k, row in enumerate(zip(*raw.columns.values(), strict=True)):
        text = raw.columns["text"][k]
        if text is None or (isinstance(text, str) and not text.strip()):
            empty.append(raw.where(k))
            continue
        for role, value in zip(raw.columns, row, strict=True):
            if isinstance(value, list | dict):
                raise raw.error(k, role, "must be a string or a number, not several")
        if check and row in seen:
            twice.append(raw.where(k))
            continue
        kept.append(k)
        if check:
            seen.add(row)
    notes = counted("empty text", empty, "skipped")
    notes += counted("the same client, time, text and all", twice, "skipped as duplicates (duplicates='keep' keeps)")
    if not kept:
        raise InputError(f"{raw.where(0)}: no row has a text")
    if not notes:
        return raw, notes
    columns = {role: [values[k] for k in kept] for role, values in raw.columns.items()}
    return Raw(columns, lambda k: raw.where(kept[k]), raw.names), notes


def _text(raw: Raw, row: int) -> str:
    text = raw.columns["text"][row]
    if not isinstance(text, str):
        raise raw.error(row, "text", "the text must be a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise raw.error(row, "text", "holds half of a surrogate pair, which is no character") from None
    return text


def _client(raw: Raw, row: int) -> str:
    client = raw.columns["client"][row]
    if isinstance(client, bool) or not isinstance(client, int | str) or client == "":
        raise raw.error(row, "client", "the client must be a string or a whole number")
    return str(client)


def _cut(raw: Raw, rule: Periods, seconds: Ints | None) -> Cut:
    kind = rule.kind(set(raw.columns))
    if kind == "time":
        assert seconds is not None  # kind() has seen the column
        return cut_by_time(seconds, rule)
    if kind == "order":
        return cut_by_order(_numbers(raw, "order"), rule)
    period = _numbers(raw, "period")
    bad = np.flatnonzero((period < 0) | (period != np.floor(period)) | (period >= 100_000))
    if len(bad):
        raise raw.error(int(bad[0]), "period", "periods must be whole numbers, 0 to 99999")
    whole = period.astype(np.int64)
    number = int(whole.max()) + 1 if rule.number is None else rule.number
    return Cut(np.where(whole < number, whole, -1), np.zeros(len(whole), dtype=bool), number)


def _numbers(raw: Raw, role: str) -> NDArray[np.float64]:
    values = np.empty(len(raw))
    for k, value in enumerate(raw.columns[role]):
        try:
            values[k] = np.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            values[k] = np.nan
        if not np.isfinite(values[k]):
            raise raw.error(k, role, "must be a number")
    return values


def _tests(raw: Raw, rule: Periods, cut: Cut, seconds: Ints | None, texts: list[str]) -> NDArray[np.bool_]:
    """Return which rows test."""
    kind = rule.kind(set(raw.columns))
    by = rule.test_by
    if by is None:
        if "split" in raw and kind == "given":
            by = "given"
        else:
            by = "text" if kind == "given" and seconds is None else "last"
    if by == "text":
        return by_text(texts, rule.test)
    if by == "last":
        if kind != "given":
            return cut.test
        if seconds is None:
            raise InputError("test_by='last' needs timestamps or an order: use test_by='text'")
        return last_of_each(cut.period, seconds, rule.test)
    if "split" not in raw:
        raise InputError("test_by='given' needs a split column: name one with columns={'split': ...} or --split")
    for k, value in enumerate(raw.columns["split"]):
        if value not in SPLITS:
            raise raw.error(k, "split", "must be 'train' or 'test'")
    return np.array([value == "test" for value in raw.columns["split"]])
