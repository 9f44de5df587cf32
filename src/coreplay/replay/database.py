"""The SQLite file under a store: opened safely, written in transactions, with errors that say what to do."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from coreplay.errors import InputError
from coreplay.files import make_folder

APPLICATION, VERSION = 0x43504C59, 3  # "CPLY"
PATIENCE = 30.0  # seconds to wait for another process that writes

_SCHEMA = (
    """CREATE TABLE buffer (
  id INTEGER PRIMARY KEY,
  client TEXT NOT NULL,
  period INTEGER NOT NULL,
  previous INTEGER NOT NULL, -- the period of the client's buffer before this one; -1: this is its first
  seen INTEGER NOT NULL,
  digest BLOB NOT NULL,
  choice BLOB NOT NULL, -- random, and not changed by an erasure: tells this choice from any other
  UNIQUE (client, period)
)""",
    """CREATE TABLE item (
  buffer INTEGER NOT NULL REFERENCES buffer ON DELETE CASCADE,
  position INTEGER NOT NULL,
  key TEXT NOT NULL,
  period INTEGER NOT NULL,
  payload BLOB NOT NULL,
  PRIMARY KEY (buffer, position)
) WITHOUT ROWID""",
    """CREATE TABLE state (
  client TEXT NOT NULL,
  period INTEGER NOT NULL, -- the client had this state after this round of this period
  round INTEGER NOT NULL,
  value BLOB NOT NULL,
  digest BLOB NOT NULL,
  PRIMARY KEY (client, period, round)
) WITHOUT ROWID""",
    """CREATE TABLE session (
  client TEXT PRIMARY KEY,
  value BLOB NOT NULL -- the client's answers in a coordination that is going on
) WITHOUT ROWID""",
)


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


class Database:
    """A file of ours in SQLite; use `open`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self._process = os.getpid()
        self._deferred: list[Callable[[], object]] | None = None

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open the store in this file, or make it; `ReplayError` unless it is ours, of our version, and whole."""
        path = Path(path).absolute()
        try:
            make_folder(path.parent, private=True)
            with suppress(FileExistsError):
                path.touch(mode=0o600, exist_ok=False)  # SQLite gives its log the mode of the file
        except OSError as error:
            raise ReplayError(f"replay store {str(path)!r} can't be opened or made: {error.strerror}") from None
        if not path.is_file():
            raise ReplayError(f"replay store {str(path)!r} can't be opened or made: it is no file")
        try:
            store = cls(path, sqlite3.connect(path, timeout=PATIENCE, isolation_level=None))
            try:
                store._prepare()
            except BaseException:
                store.close()
                raise
        except sqlite3.Error as error:
            raise explained(error, path) from None
        except UnicodeDecodeError as error:  # SQLite quotes what it finds
            raise store.damaged(error) from None
        return store

    def damaged(self, problem: object) -> ReplayError:
        """Return the error of a store that holds something else than was written."""
        return ReplayError(
            f"replay store {str(self.path)!r} is damaged: {problem}; restore a copy, or delete it and the run's "
            "checkpoint and start again"
        )

    def _prepare(self) -> None:
        with self._transaction("DEFERRED"):  # before anything is written: it may be somebody else's
            self._is_new()
        if not os.access(self.path, os.W_OK):  # SQLite would notice on the first write only
            raise ReplayError(f"replay store {str(self.path)!r}: it can't be written; change its permissions")
        if self.path.stat().st_mode & 0o077:  # of an earlier coreplay
            with suppress(PermissionError):
                self.path.chmod(0o600)
        self._use_log()
        self._db.execute("PRAGMA synchronous = FULL")  # NORMAL could lose the last buffers in a power cut
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA secure_delete = ON")  # deleted samples are overwritten, not left in free pages
        self._db.execute("PRAGMA trusted_schema = OFF")
        with self._transaction("IMMEDIATE"):  # two processes may make it at once
            if self._is_new():
                for statement in _SCHEMA:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {APPLICATION}")
                self._db.execute(f"PRAGMA user_version = {VERSION}")
        found = {sql for (sql,) in self._db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        problem = self._value("PRAGMA quick_check(1)") if found == set(_SCHEMA) else "its tables are not ours"
        if problem != "ok":
            raise self.damaged(" ".join(str(problem).split()))  # SQLite writes several lines

    def _use_log(self) -> None:
        """Turn to the write-ahead log, which readers can follow; SQLite does not wait for others by itself here."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                mode = self._value("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > until:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise ReplayError(
                f"replay store {str(self.path)!r}: no shared memory on this file system; use a local disk"
            )

    def _is_new(self) -> bool:
        """Tell whether the file is still empty; raise if it is not ours or of a later version."""
        application, version = self._value("PRAGMA application_id"), self._value("PRAGMA user_version")
        if application == version == self._value("SELECT count(*) FROM sqlite_master") == 0:
            return True
        if application != APPLICATION:
            raise ReplayError(f"{str(self.path)!r} is a database of another program: choose another file")
        if version != VERSION:
            raise ReplayError(
                f"replay store {str(self.path)!r} has version {version}, this coreplay knows version {VERSION}: "
                "use the coreplay that wrote it"
            )
        return False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Write what is replaced or saved in the block at its end, in one transaction; nothing if the block raises."""
        self._deferred = []
        try:
            yield
            writes = self._deferred
            self._deferred = None
            if writes:
                with self._transaction("IMMEDIATE"):
                    for write in writes:
                        write()
        finally:
            self._deferred = None

    def _write(self, write: Callable[[], object]) -> None:
        if self._deferred is not None:
            self._deferred.append(write)
            return
        with self._transaction("IMMEDIATE"):
            write()

    def close(self) -> None:
        """Close the file; what was replaced is on the disk already."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _value(self, query: str) -> object:
        return self._db.execute(query).fetchone()[0]

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """Do the block as one transaction: all of it when it ends, nothing of it if it raises."""
        if os.getpid() != self._process:  # SQLite's locks do not pass to a child; two would write at once
            raise ReplayError(f"replay store {str(self.path)!r} was opened in another process: open it in this one too")
        try:
            self._db.execute(f"BEGIN {kind}")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        except sqlite3.ProgrammingError:  # a closed store, another thread: a mistake in the calling program
            raise
        except sqlite3.Error as error:
            raise explained(error, self.path) from None
        except UnicodeDecodeError as error:  # of a text that no store has written
            raise self.damaged(error) from None
