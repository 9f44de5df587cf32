"""What can go wrong with a store, in words that say what to do."""

import sqlite3
from pathlib import Path

from coreplay.errors import InputError


class ReplayError(InputError):
    """A store that can't be opened, read or written; what was stored before is still as it was."""


# by SQLite's name of the error, or the longest beginning of it
_REASONS = {
    "SQLITE_FULL": "the disk is full; the buffers are as they were: make room and resume",
    "SQLITE_BUSY": "another process keeps it locked; wait until that one is done",
    "SQLITE_READONLY": "it can't be written; change its permissions or choose another place",
    "SQLITE_PERM": "it can't be written; change its permissions or choose another place",
    "SQLITE_CANTOPEN": "it can't be opened or made; choose another place, where you may write",
    "SQLITE_NOTADB": "it is no SQLite database, or damaged; choose another file or restore a copy",
    "SQLITE_CORRUPT": "it is damaged; restore a copy, or delete it and the run's checkpoint and start again",
    "SQLITE_IOERR": "the disk does not read or write; the buffers are as they were: mend it and resume",
}


def explained(error: sqlite3.Error, path: Path) -> ReplayError:
    """Return SQLite's error in our words."""
    name = getattr(error, "sqlite_errorname", "")
    reason = next((text for start, text in _REASONS.items() if name.startswith(start)), "it can't be used")
    return ReplayError(f"replay store {str(path)!r}: {reason} ({' '.join(str(error).split())})")
