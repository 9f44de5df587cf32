"""The store: buffers in one SQLite file, each always the old one or the new one, whenever the process dies.

A simulation keeps all its clients in one file, a deployed client has one of its own (`path_for`): the code is the same.

Of each client the store keeps the last two buffers, so that a run whose last period was only half done can go back to
the end of the period before. Each remembers the period of the one before it; a state that is no longer there is
therefore noticed and never taken for an empty one.
"""

import hashlib
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from coreplay.errors import InputError
from coreplay.files import make_folder
from coreplay.replay.buffer import Buffer, Item
from coreplay.replay.errors import ReplayError, explained

APPLICATION, VERSION = 0x43504C59, 2  # "CPLY"
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
)


def path_for(folder: Path | str, client: str) -> Path:
    """Return the file for one client's store in `folder`: a safe name whatever the client is called.

    A hash tells clients apart, also where the file system ignores case; the letters before it are for people.

    >>> path_for("buffers", "../../Ann").name
    'ann-b792946d3c50238f87d34c570dc0e7c0.sqlite'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", client[:32].lower()).strip("-") or "client"
    digest = hashlib.blake2b(client.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return Path(folder) / f"{readable}-{digest}.sqlite"


class Store:
    """Buffers by client, in one file; use `Store.open`.

    Any number of processes may have one file open; each opens its own store, after a fork too. One writes at a time,
    others wait for it, and readers see the state before or after a call, never between.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> with Store.open(Path(folder.name) / "buffers.sqlite") as store:
    ...     store.replace(Buffer("ann", 0, 12, (Item("17", 0, b"play jazz"),)))
    ...     store.load("ann").seen, store.load("bo").items, store.load("ann", at=-1).items
    (12, (), ())
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self._process = os.getpid()

    @classmethod
    def open(cls, path: Path | str) -> "Store":
        """Open the store in this file, or make it; check that it is ours, of a version we know, and whole.

        Raises
        ------
        ReplayError
            If the file can't be opened or written, is no store, was written by a later version, or is damaged.
        """
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
            raise ReplayError(f"replay store {str(path)!r} is damaged: {error}; restore a copy") from None
        return store

    def _prepare(self) -> None:
        with self._transaction("DEFERRED"):  # before anything is written: it may be somebody else's
            self._is_new()
        if not os.access(self.path, os.W_OK):  # SQLite would notice on the first write only
            raise ReplayError(f"replay store {str(self.path)!r}: it can't be written; change its permissions")
        if self.path.stat().st_mode & 0o077:  # of an earlier coreplay
            with suppress(PermissionError):
                self.path.chmod(0o600)
        self._use_log()
        # FULL: the log is on the disk before a call returns. NORMAL would survive a killed process as well, but a power
        # cut could take the last buffers back, and the samples that they replaced are gone from the client by then.
        self._db.execute("PRAGMA synchronous = FULL")
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
            problem = " ".join(str(problem).split())  # SQLite writes several lines
            raise ReplayError(
                f"replay store {str(self.path)!r} is damaged: {problem}; restore a copy, or delete it and the run's "
                "checkpoint and start again"
            )

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
            raise ReplayError(
                f"{str(self.path)!r} is a database of another program, not a replay store: choose another file"
            )
        if version != VERSION:
            raise ReplayError(
                f"replay store {str(self.path)!r} has version {version}, this coreplay knows version {VERSION}: "
                "use the coreplay that wrote it"
            )
        return False

    def load(self, client: str, at: int | None = None) -> Buffer:
        """Return what a client keeps, now or `at` the end of a period; an empty buffer if it never chose."""
        return self.load_many([client], at)[client]

    def load_many(self, clients: Iterable[str], at: int | None = None) -> dict[str, Buffer]:
        """Return what several clients keep, all of one moment."""
        with self._transaction("DEFERRED"):
            return {client: self._load(client, at) for client in clients}

    def _load(self, client: str, at: int | None) -> Buffer:
        kept = self._db.execute(
            "SELECT id, period, previous, seen, digest FROM buffer WHERE client = ? ORDER BY period DESC", (client,)
        ).fetchall()
        for number, period, _, seen, digest in kept:
            if at is None or period <= at:
                return self._read(number, client, period, seen, digest)
        if kept and kept[-1][2] >= 0 and at is not None and at >= 0:
            raise self._gone(client, at)
        return Buffer(client)

    def _read(self, number: int, client: str, period: int, seen: int, digest: bytes) -> Buffer:
        rows = self._db.execute("SELECT key, period, payload FROM item WHERE buffer = ? ORDER BY position", (number,))
        try:
            buffer = Buffer(client, period, seen, tuple(Item(*row) for row in rows))
            whole = buffer.digest() == digest
        except (InputError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise ReplayError(
                f"replay store {str(self.path)!r} is damaged: the buffer of client {client[:40]!r} after "
                f"period {period} is not what was written; restore a copy, or rewind to an earlier period"
            )
        return buffer

    def replace(self, buffer: Buffer) -> None:
        """Put a client's buffer in the place of its old one, for good when this returns."""
        self.replace_all([buffer])

    def replace_all(self, buffers: Iterable[Buffer]) -> None:
        """Put the buffers of several clients in the place of their old ones: all, or none if anything fails.

        The same again changes nothing; the same period again replaces what was stored for it. A period before the
        one that is stored is refused: `rewind` first.
        """
        buffers = list(buffers)
        if len({buffer.client for buffer in buffers}) < len(buffers):
            raise InputError("replace_all takes one buffer a client: got two of the same client")
        with self._transaction("IMMEDIATE"):
            for buffer in buffers:
                self._replace(buffer)

    def _replace(self, buffer: Buffer) -> None:
        client, period = buffer.client, buffer.period
        if period < 0:
            raise InputError(
                f"the buffer of client {client[:40]!r} must say after which period it was chosen: got {period}"
            )
        newest = self._db.execute(
            "SELECT period, previous FROM buffer WHERE client = ? ORDER BY period DESC LIMIT 1", (client,)
        ).fetchone()
        last, previous = newest or (-1, -1)
        if last > period:
            raise ReplayError(
                f"replay store {str(self.path)!r} holds the buffer of client {client[:40]!r} after period {last}: got "
                f"one after period {period}; call rewind({period}) if the later one shall be forgotten"
            )
        if last < period:
            previous = last
        self._db.execute(
            "DELETE FROM buffer WHERE client = ? AND (period = ? OR period < ?)", (client, period, previous)
        )
        number = self._db.execute(
            "INSERT INTO buffer (client, period, previous, seen, digest, choice) VALUES (?, ?, ?, ?, ?, ?)",
            (client, period, previous, buffer.seen, buffer.digest(), os.urandom(16)),
        ).lastrowid
        self._db.executemany(
            "INSERT INTO item VALUES (?, ?, ?, ?, ?)", ((number, k, *item) for k, item in enumerate(buffer.items))
        )

    def rewind(self, period: int) -> None:
        """Go back to the end of `period`: forget the buffers chosen later; -1 forgets all.

        Nothing changes if there is no way back for some client, since its buffer of then is no longer kept.
        """
        with self._transaction("IMMEDIATE"):
            lost = self._db.execute(
                "SELECT client FROM buffer GROUP BY client HAVING min(period) > ? AND min(previous) >= 0", (period,)
            ).fetchone()
            if lost and period >= 0:
                raise self._gone(lost[0], period)
            self._db.execute("DELETE FROM buffer WHERE period > ?", (period,))

    def erase(self, client: str, key: str) -> None:
        """Remove a sample of a client from every buffer that the store keeps, and its bytes from the file.

        When this returns, the bytes are neither in the database, nor in its free pages, nor in its journal. The buffers
        stay those that were chosen: a run goes on with one sample less.

        Raises
        ------
        ReplayError
            If the client keeps no such sample, or if another process is reading and the journal can't be emptied.
        """
        with self._transaction("IMMEDIATE"):
            rows = self._db.execute(
                "SELECT id, client, buffer.period, seen, digest FROM buffer JOIN item ON item.buffer = id "
                "WHERE client = ? AND key = ?",
                (client, key),
            ).fetchall()
            if not rows:
                raise ReplayError(
                    f"replay store {str(self.path)!r}: client {client[:40]!r} keeps no sample {key[:40]!r}; "
                    "load(client).items has the keys"
                )
            for row in rows:
                old = self._read(*row)
                new = Buffer(client, old.period, old.seen, tuple(item for item in old.items if item.key != key))
                self._db.execute("DELETE FROM item WHERE buffer = ? AND key = ?", (row[0], key))
                self._db.execute("UPDATE buffer SET digest = ? WHERE id = ?", (new.digest(), row[0]))
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise ReplayError(
                f"replay store {str(self.path)!r}: sample {key[:40]!r} is erased from the buffers, but its bytes stay "
                "in the journal until every process has closed the store: close it everywhere"
            )

    def fingerprint(self, at: int | None = None) -> str:
        """Return a text that tells the buffers, now or `at` the end of a period, from any others; empty if none is.

        An erasure does not change it.
        """
        digest = hashlib.blake2b(digest_size=16)
        with self._transaction("DEFERRED"):
            rows = self._db.execute(
                "SELECT client, max(period), choice FROM buffer WHERE period <= ? GROUP BY client ORDER BY client",
                (2**62 if at is None else at,),
            ).fetchall()
        for client, period, choice in rows:
            digest.update(f"{len(client)}\0{client}\0{period}\0".encode() + choice)
        return digest.hexdigest() if rows else ""

    def _gone(self, client: str, at: int) -> ReplayError:
        return ReplayError(
            f"replay store {str(self.path)!r} no longer holds the buffer of client {client[:40]!r} at the end of "
            f"period {at}: the last two of a client are kept; take a later period, or -1 to start from scratch"
        )

    def clients(self) -> list[str]:
        """Return the clients that have a buffer, sorted."""
        with self._transaction("DEFERRED"):
            return [client for (client,) in self._db.execute("SELECT DISTINCT client FROM buffer ORDER BY client")]

    def close(self) -> None:
        """Close the file; what was replaced is on the disk already."""
        self._db.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            raise ReplayError(f"replay store {str(self.path)!r} is damaged: {error}; restore a copy") from None
