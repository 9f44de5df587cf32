"""The store: buffers in one SQLite file, each always the old one or the new one, whenever the process dies.

The store keeps the last two buffers of each client, so that a run that stopped during a period can go back to the end
of the period before. Each buffer has the period of the one before it, so that a missing one is noticed.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from coreplay.errors import InputError
from coreplay.replay.buffer import Buffer, Item
from coreplay.replay.database import Database, ReplayError

Moment = tuple[int, int]  # a period and a round


def path_for(folder: Path | str, client: str) -> Path:
    """Return the file for one client's store in `folder`, with a safe name whatever the client is called.

    >>> path_for("buffers", "../../Ann").name
    'ann-b792946d3c50238f87d34c570dc0e7c0.sqlite'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", client[:32].lower()).strip("-") or "client"
    digest = hashlib.blake2b(client.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return Path(folder) / f"{readable}-{digest}.sqlite"


class Store(Database):
    """Buffers by client, in one file; use `Store.open`, in every process and again after a fork.

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

    def load(self, client: str, at: int | None = None) -> Buffer:
        """Return what a client keeps, now or `at` the end of a period; an empty buffer if it never chose."""
        return self.load_many([client], at)[client]

    def version(self, client: str, at: int) -> bytes:
        """Return a digest of what a client keeps `at` the end of a period; empty if it keeps nothing."""
        rows = self._rows(
            "SELECT digest FROM buffer WHERE client = ? AND period <= ? ORDER BY period DESC LIMIT 1", client, at
        )
        return bytes(rows[0][0]) if rows else b""

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
            what = f"the buffer of client {client[:40]!r} after period {period} is not what was written"
            raise self.damaged(f"{what}; rewind to an earlier period")
        return buffer

    def replace(self, *buffers: Buffer) -> None:
        """Replace the buffers of one or several clients durably: all, or none if anything fails.

        A buffer of a period before the stored one is refused: `rewind` first.
        """

        def write() -> None:
            for buffer in buffers:
                self._replace(buffer)

        self._write(write)

    def _replace(self, buffer: Buffer) -> None:
        client, period = buffer.client, buffer.period
        if period < 0:
            raise InputError(f"the buffer of client {client[:40]!r} must be of a period from 0: got {period}")
        newest = self._db.execute(
            "SELECT period, previous FROM buffer WHERE client = ? ORDER BY period DESC LIMIT 1", (client,)
        ).fetchone()
        last, previous = newest or (-1, -1)
        if last > period:
            raise self.error(
                f"holds the buffer of client {client[:40]!r} after period {last}: got one after period {period}; "
                f"call rewind({period}) to forget the later one"
            )
        if last < period:
            previous = last
        old = (client, period, previous)
        self._db.execute("DELETE FROM buffer WHERE client = ? AND (period = ? OR period < ?)", old)
        number = self._db.execute(
            "INSERT INTO buffer (client, period, previous, seen, digest, choice) VALUES (?, ?, ?, ?, ?, ?)",
            (client, period, previous, buffer.seen, buffer.digest(), os.urandom(16)),
        ).lastrowid
        self._db.executemany(
            "INSERT INTO item VALUES (?, ?, ?, ?, ?)", ((number, k, *item) for k, item in enumerate(buffer.items))
        )

    def state(self, client: str, before: Moment) -> bytes | None:
        """Return the last state of a client that was saved before this round of this period; None if there is none."""
        rows = self._rows(
            "SELECT value, digest FROM state WHERE client = ? AND (period, round) < (?, ?) "
            "ORDER BY period DESC, round DESC LIMIT 1",
            client,
            *before,
        )
        if rows and _digest(rows[0][0]) != rows[0][1]:
            raise self.damaged(f"the state of client {client[:40]!r} is not what was written")
        return bytes(rows[0][0]) if rows else None

    def save_state(self, client: str, at: Moment, value: bytes, keep_from: Moment) -> None:
        """Save a client's state after a round, in the place of states of later rounds.

        Of states before `keep_from`, the earliest moment that the run may go back to, the last one is kept.
        """

        def write() -> None:
            self._db.execute("DELETE FROM state WHERE client = ? AND (period, round) >= (?, ?)", (client, *at))
            self._db.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?)", (client, *at, value, _digest(value)))
            self._db.execute(
                "DELETE FROM state WHERE client = ?1 AND (period, round) < (SELECT period, round FROM state WHERE "
                "client = ?1 AND (period, round) < (?2, ?3) ORDER BY period DESC, round DESC LIMIT 1)",
                (client, *keep_from),
            )

        self._write(write)

    def session(self, client: str) -> bytes | None:
        """Return what a client has answered in a coordination that is going on; None if there is none."""
        rows = self._rows("SELECT value FROM session WHERE client = ?", client)
        return bytes(rows[0][0]) if rows else None

    def save_session(self, client: str, value: bytes) -> None:
        """Save what a client has answered in a coordination, in place of what it answered in an earlier one."""
        self._write(lambda: self._db.execute("INSERT OR REPLACE INTO session VALUES (?, ?)", (client, value)))

    def rewind(self, period: int) -> None:
        """Go back to the end of `period`, -1 for the start; nothing changes if a client's buffer of then is gone."""
        with self._transaction("IMMEDIATE"):
            lost = self._db.execute(
                "SELECT client FROM buffer GROUP BY client HAVING min(period) > ? AND min(previous) >= 0", (period,)
            ).fetchone()
            if lost and period >= 0:
                raise self._gone(lost[0], period)
            self._db.execute("DELETE FROM buffer WHERE period > ?", (period,))
            self._db.execute("DELETE FROM state WHERE period > ?", (period + 1,))
            self._db.execute("DELETE FROM session")

    def erase(self, client: str, key: str) -> None:
        """Remove a sample of a client from every buffer that the store keeps, and its bytes from the file.

        When this returns, the bytes are neither in the database, nor in its free pages, nor in its journal;
        `ReplayError` if another process is reading and the journal can't be emptied, or if there is no such sample.
        """
        with self._transaction("IMMEDIATE"):
            rows = self._db.execute(
                "SELECT id, client, buffer.period, seen, digest FROM buffer JOIN item ON item.buffer = id "
                "WHERE client = ? AND key = ?",
                (client, key),
            ).fetchall()
            if not rows:
                raise self.error(
                    f"has no sample {key[:40]!r} of client {client[:40]!r}: load(client).items has the keys"
                )
            for row in rows:
                old = self._read(*row)
                new = Buffer(client, old.period, old.seen, tuple(item for item in old.items if item.key != key))
                self._db.execute("DELETE FROM item WHERE buffer = ? AND key = ?", (row[0], key))
                self._db.execute("UPDATE buffer SET digest = ? WHERE id = ?", (new.digest(), row[0]))
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise self.error(
                f"has erased sample {key[:40]!r} from the buffers, but its bytes are in the journal until "
                "all processes have closed the store: close it everywhere"
            )

    def fingerprint(self, before: Moment | None = None) -> str:
        """Return a text that identifies the buffers and states, now or before a round, also after an erasure."""
        before = before or (2**62, 0)
        digest = hashlib.blake2b(digest_size=16)
        with self._transaction("DEFERRED"):
            rows = self._db.execute(
                "SELECT client, max(period), choice FROM buffer WHERE period < ? GROUP BY client ORDER BY client",
                before[:1],
            ).fetchall()
            rows += self._db.execute(
                "SELECT client, max(period * 4294967296 + round), digest FROM state WHERE (period, round) < (?, ?) "
                "GROUP BY client ORDER BY client",
                before,
            ).fetchall()
        for client, moment, written in rows:
            digest.update(f"{len(client)}\0{client}\0{moment}\0".encode() + written)
        return digest.hexdigest() if rows else ""

    def _gone(self, client: str, at: int) -> ReplayError:
        return self.error(
            f"no longer holds the buffer of client {client[:40]!r} at the end of period {at}: the last two of a client "
            "are kept; take a later period, or -1 to start over"
        )

    def clients(self) -> list[str]:
        """Return the clients that have a buffer, sorted."""
        return [client for (client,) in self._rows("SELECT DISTINCT client FROM buffer ORDER BY client")]


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()
