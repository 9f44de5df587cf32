"""Timestamps to Unix seconds: numbers, ISO 8601 texts and datetimes, but never a silent guess between them."""

import math
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data.columns import Raw
from coreplay.errors import InputError

_LAST = 253402300800  # the year 10000, which milliseconds taken for seconds pass
_NUMBER, _WITH_ZONE, _WITHOUT_ZONE = "Unix seconds", "a time with a zone", "a time without a zone"


def unix_seconds(raw: Raw, role: str = "timestamp") -> NDArray[np.int64]:
    """Return the seconds of each row.

    Times with a zone are converted, also when zones differ; a column wholly without zones is read as UTC. A column that
    mixes kinds would put rows hours apart without anybody noticing, so it is an error.
    """
    given = raw.columns[role]
    if set(map(type, given)) == {int} and -_LAST < min(given) <= max(given) < _LAST:
        return np.array(given, dtype=np.int64)
    seconds = np.empty(len(raw), dtype=np.int64)
    first: str | None = None
    for k, value in enumerate(given):
        try:
            seconds[k], kind = _parsed(value)
        except (ValueError, OverflowError, TypeError) as error:
            raise raw.error(k, role, f"not a time ({error}): use Unix seconds or 2026-11-15T09:30:00+00:00") from None
        if first is None:
            first = kind
        elif kind != first:
            raise raw.error(k, role, f"this is {kind}, but {raw.where(0)} has {first}: make all rows alike")
    return seconds


def moment(value: str | int | float | date) -> int:
    """Return the Unix seconds of one time, such as the start of the first period.

    >>> moment("2021-09-17"), moment("2021-09-17T02:00:00+02:00")
    (1631836800, 1631836800)
    """
    try:
        return _parsed(value)[0]
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"a time must be Unix seconds or ISO 8601, such as 2021-09-17: got {value!r} ({error})"
        ) from None


def _parsed(value: Any) -> tuple[int, str]:
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text)
        except ValueError:
            value = datetime.fromisoformat(text)
    if isinstance(value, datetime):
        zone = _WITHOUT_ZONE if value.tzinfo is None else _WITH_ZONE
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return math.floor(aware.timestamp()), zone
    if isinstance(value, date):
        return math.floor(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()), _WITHOUT_ZONE
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a {type(value).__name__}")
    if not -_LAST < value < _LAST:
        raise ValueError("beyond the year 9999; are these milliseconds?")
    return math.floor(value), _NUMBER
