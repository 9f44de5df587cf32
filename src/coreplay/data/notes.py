"""Counted warnings: what was left out of a stream, how often, and where it was seen first."""

import warnings
from collections.abc import Iterable


class DataWarning(UserWarning):
    """Something in the data was skipped or is odd; the message says how often and where first."""


def warn(notes: Iterable[str]) -> None:
    """Issue each note as a `DataWarning`."""
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=3)


def counted(what: str, places: list[str], remedy: str) -> list[str]:
    """Return one note for all the places, or none.

    >>> counted("empty text", ["a.jsonl:3", "a.jsonl:9"], "skipped")
    ['empty text in 2 rows, first at a.jsonl:3: skipped']
    """
    if not places:
        return []
    rows = "1 row" if len(places) == 1 else f"{len(places)} rows"
    return [f"{what} in {rows}, first at {places[0]}: {remedy}"]
