"""The SQLite file of a store: opened safely, written in transactions, with errors that name a remedy."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

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
    """A store that can't be opened, read or written; what was stored before is unchanged."""


_RESTORE = "restore a copy, or delete it and the run's checkpoint and start again"
_REASONS = {  # by the beginning of SQLite's name of the error
    "SQLITE_FULL": "can't be written: the disk is full; the buffers are as they were: make room and resume",
    "SQLITE_BUSY": "is locked by another process; wait until that one is done",
    "SQLITE_READONLY": "can't be written; change its permissions or choose another place",
    "SQLITE_PERM": "can't be written; change its permissions or choose another place",
    "SQLITE_CANTOPEN": "can't be opened or made; choose a place where you may write",
    "SQLITE_NOTADB": "is no SQLite database, or damaged; choose another file or restore a copy",
    "SQLITE_CORRUPT": f"is damaged; {_RESTORE}",
    "SQLITE_IOERR": "has an I/O error of the disk; the buffers are as they were: repair the disk and resume",
}


class Database:
    """A store's SQLite file; use `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = os.getpid()
        self._deferred: list[Callable[[], object]] | None = None
        try:
            make_folder(path.parent, private=True)
            with suppress(FileExistsError):
                path.touch(mode=0o600, exist_ok=False)  # SQLite gives its log the mode of the file
        except OSError as error:
            raise self.error(f"can't be opened or made: {error.strerror}") from None
        if not path.is_file():
            raise self.error("can't be opened or made: it is no file")
        with self._errors():
            self._db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open the store in this file, or make it; `ReplayError` unless it is a whole store of this version."""
        return cls(Path(path).absolute())

    def error(self, problem: str) -> ReplayError:
        """Return an error that names the store."""
        return ReplayError(f"replay store {str(self.path)!r} {problem}")

    def damaged(self, problem: object) -> ReplayError:
        """Return the error for a store that does not hold what was written."""
        return self.error(f"is damaged: {problem}; {_RESTORE}")

    def _prepare(self) -> None:
        with self._transaction("DEFERRED"):  # before anything is written: it may be somebody else's
            self._is_new()
        if not os.access(self.path, os.W_OK):  # SQLite would notice on the first write only
            raise self.error("can't be written; change its permissions")
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
        """Use the write-ahead log, so that others can read while one writes; here SQLite does not wait by itself."""
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
            raise self.error("is on a file system without shared memory; use a local disk")

    def _is_new(self) -> bool:
        """Return whether the file is still empty; raise if it is of another program or version."""
        application, version = self._value("PRAGMA application_id"), self._value("PRAGMA user_version")
        if application == version == self._value("SELECT count(*) FROM sqlite_master") == 0:
            return True
        if application != APPLICATION:
            raise self.error("is a database of another program: choose another file")
        if version != VERSION:
            raise self.error(
                f"has version {version}, this coreplay knows version {VERSION}: use the coreplay that wrote it"
            )
        return False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Write what is replaced or saved in the block at its end, in one transaction; nothing if the block raises."""
        writes: list[Callable[[], object]] = []
        self._deferred = writes
        try:
            yield
        finally:
            self._deferred = None
        if writes:
            with self._transaction("IMMEDIATE"):
                for write in writes:
                    write()

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

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query that is a transaction by itself."""
        with self._transaction("DEFERRED"):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """Do the block as one transaction: all of it when it ends, nothing of it if it raises."""
        if os.getpid() != self._process:  # SQLite's locks do not pass to a child; two would write at once
            raise self.error("was opened in another process: open it in this one too")
        with self._errors(), self._db:  # which commits, or rolls back on an error
            self._db.execute(f"BEGIN {kind}")
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of SQLite, except mistakes of the calling program, into a `ReplayError` with a remedy."""
        try:
            yield
        except sqlite3.ProgrammingError:  # a closed store, another thread
            raise
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            reason = next((text for start, text in _REASONS.items() if name.startswith(start)), "can't be used")
            raise self.error(f"{reason} ({' '.join(str(error).split())})") from None
        except UnicodeDecodeError as error:  # of a text that no store has written
            raise self.damaged(error) from None
