"""The store against a plain dictionary, on a full disk, and under several processes."""

import os
import sqlite3
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coreplay.errors import InputError
from coreplay.replay import Buffer, Item, ReplayError, Store, path_for

ROOT = Path(__file__).parents[2]


def buffer_of(client, period, size=20, mark=b""):
    items = tuple(Item(f"{period}-{k}", k % (period + 1), mark + b"%d" % k * 100) for k in range(size))
    return Buffer(client, period, 10 * size, items)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "buffers.sqlite"


CLIENTS = ["ann", "Ann", "", "../../etc", "ö\0x", "'; drop table buffer; --", "x" * 3000]


class AgainstAModel(RuleBasedStateMachine):
    """`history` holds every buffer ever written and not rewound; the store may forget all but the last two."""

    @initialize()
    def begin(self):
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "buffers.sqlite"
        self.store = Store.open(self.path)
        self.history: dict[str, dict[int, Buffer]] = {}
        self.kept: dict[str, list[int]] = {}

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()

    def newest(self, client):
        return max(self.history.get(client, {-1: None}))

    def note(self, buffer):
        self.history.setdefault(buffer.client, {})[buffer.period] = buffer
        kept = self.kept.setdefault(buffer.client, [])
        self.kept[buffer.client] = sorted({*kept, buffer.period})[-2:]

    @rule(
        clients=st.lists(st.sampled_from(CLIENTS), min_size=1, max_size=4, unique=True),
        period=st.integers(0, 6),
        size=st.integers(0, 3),
        mark=st.binary(max_size=5),
    )
    def replace(self, clients, period, size, mark):
        buffers = [buffer_of(client, period, size, mark) for client in clients]
        if any(self.newest(client) > period for client in clients):
            with pytest.raises(ReplayError, match=rf"after period \d+: got one after period {period}; call rewind"):
                self.store.replace(*buffers)
            return
        self.store.replace(*buffers)
        for buffer in buffers:
            self.note(buffer)

    def state(self, client, at):
        """Return the buffer at the end of a period, or None if the store has forgotten it."""
        then = [period for period in self.history.get(client, {}) if period <= at]
        if not then:
            return Buffer(client)
        return self.history[client][max(then)] if max(then) in self.kept[client] else None

    def possible(self, client, at):
        # what was there before the first forgotten buffer is not known either, except that it began with nothing
        forgot = self.history.get(client, {}).keys() - self.kept.get(client, [])
        return at == -1 or (self.state(client, at) is not None and not (forgot and at < min(self.kept[client])))

    @rule(client=st.sampled_from(CLIENTS), at=st.integers(-1, 7))
    def load_at(self, client, at):
        if self.possible(client, at):
            assert self.store.load(client, at) == self.state(client, at)
        else:
            with pytest.raises(ReplayError, match="no longer holds the buffer"):
                self.store.load(client, at)

    @rule(client=st.sampled_from(CLIENTS), key=st.sampled_from([f"{t}-{k}" for t in range(7) for k in range(3)]))
    def erase(self, client, key):
        held = {p: self.history[client][p] for p in self.kept.get(client, [])}
        if not any(item.key == key for buffer in held.values() for item in buffer.items):
            with pytest.raises(ReplayError, match="has no sample"):
                self.store.erase(client, key)
            return
        before = self.store.fingerprint()
        self.store.erase(client, key)
        assert self.store.fingerprint() == before
        for period, buffer in held.items():
            rest = tuple(item for item in buffer.items if item.key != key)
            self.history[client][period] = Buffer(client, period, buffer.seen, rest)

    @rule(at=st.integers(-1, 6))
    def rewind(self, at):
        if not all(self.possible(client, at) for client in self.history):
            with pytest.raises(ReplayError, match="no longer holds the buffer"):
                self.store.rewind(at)
            return
        self.store.rewind(at)
        for client in list(self.history):
            self.history[client] = {p: b for p, b in self.history[client].items() if p <= at}
            self.kept[client] = [p for p in self.kept[client] if p <= at]
            if not self.history[client]:
                del self.history[client], self.kept[client]

    @rule()
    def open_again(self):
        self.store.close()
        self.store = Store.open(self.path)

    @invariant()
    def same_as_the_model(self):
        if not hasattr(self, "store"):
            return
        assert self.store.clients() == sorted(self.history)
        everyone = self.store.load_many(CLIENTS)
        for client in CLIENTS:
            expected = self.history[client][self.newest(client)] if client in self.history else Buffer(client)
            assert everyone[client] == expected


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@given(
    client=st.text(st.characters(codec="utf-8"), max_size=30),
    items=st.lists(
        st.builds(Item, st.text(st.characters(codec="utf-8"), max_size=9), st.integers(0, 3), st.binary(max_size=50)),
        unique_by=lambda item: item.key,
        max_size=5,
    ).map(tuple),
    more=st.integers(0, 2**62),
)
def test_what_is_stored_comes_back(tmp_path_factory, client, items, more):
    buffer = Buffer(client, 3, len(items) + more, items)
    with Store.open(tmp_path_factory.mktemp("store") / "a.sqlite") as store:
        store.replace(buffer)
        assert store.load(client) == buffer
        assert store.clients() == [client]


def every_file(path):
    return b"".join(p.read_bytes() for p in path.parent.iterdir())


def test_an_erased_sample_is_nowhere_in_the_files(path):
    secret = os.urandom(9000)  # longer than a page
    item = Item("secret", 0, secret)
    with Store.open(path) as store:
        for period in range(2):
            store.replace(*[Buffer(c, period, 50, (item, *buffer_of(c, period).items)) for c in ("ann", "bo")])
        pieces = [secret[at : at + 16] for at in range(0, len(secret) - 16, 16)]
        assert any(piece in every_file(path) for piece in pieces)
        store.erase("ann", "secret")
        assert [len(store.load("ann", at).items) for at in (0, 1)] == [20, 20]
        assert len(store.load("bo").items) == 21, "another client's is its own"
        store.erase("bo", "secret")
        assert not any(piece in every_file(path) for piece in pieces)
        with pytest.raises(ReplayError, match="has no sample 'secret' of client 'ann'"):
            store.erase("ann", "secret")


def test_samples_that_were_replaced_are_nowhere_in_the_database(path):
    secret = os.urandom(9000)
    with Store.open(path) as store:
        store.replace(Buffer("ann", 0, 50, (Item("secret", 0, secret),)))
        store.replace(buffer_of("ann", 1))
        store.replace(buffer_of("ann", 2))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    found = path.read_bytes()
    assert not any(secret[at : at + 16] in found for at in range(0, len(secret) - 16, 16))


def test_a_fingerprint_tells_choices_apart_and_knows_the_past(path, tmp_path):
    with Store.open(path) as store, Store.open(tmp_path / "other.sqlite") as other:
        assert store.fingerprint() == ""
        store.replace(buffer_of("ann", 0))
        other.replace(buffer_of("ann", 0))
        first = store.fingerprint()
        assert first
        assert first != other.fingerprint(), "the store of another run is not taken for this one"
        store.replace(buffer_of("bo", 1))
        assert store.fingerprint((1, 0)) == first != store.fingerprint()
        store.rewind(0)
        assert store.fingerprint() == first


def test_only_two_buffers_of_a_client_are_kept_and_nothing_else_remains(path):
    with Store.open(path) as store:
        for period in range(6):
            store.replace(buffer_of("ann", period, 3), buffer_of("bo", period // 3 * 3, 2))
    rows = sqlite3.connect(path)
    assert rows.execute("SELECT client, period FROM buffer ORDER BY 1, 2").fetchall() == [
        ("ann", 4), ("ann", 5), ("bo", 0), ("bo", 3)
    ]  # fmt: skip
    assert rows.execute("SELECT count(*) FROM item").fetchone() == (3 + 3 + 2 + 2,)
    rows.close()


def test_a_half_done_period_is_done_again(path):
    with Store.open(path) as store:
        before = [buffer_of(client, 4) for client in ("ann", "bo")]
        store.replace(*before)
        store.replace(buffer_of("ann", 5, mark=b"half"))
        store.replace(buffer_of("new", 5))
        store.rewind(4)
        assert list(store.load_many(["ann", "bo"]).values()) == before
        assert store.clients() == ["ann", "bo"]
        store.rewind(4)
        store.replace(buffer_of("ann", 5))
        assert store.load("ann") == buffer_of("ann", 5)
        assert store.load("ann", at=4) == before[0]


def test_one_bad_buffer_and_none_is_written(path):
    with Store.open(path) as store:
        store.replace(buffer_of("bo", 7))
        with pytest.raises(ReplayError, match=r"'bo' after period 7: got one after period 6; call rewind\(6\)"):
            store.replace(buffer_of("ann", 6), buffer_of("bo", 6))
        assert store.clients() == ["bo"]
        with pytest.raises(InputError, match="must be of a period from 0: got -1"):
            store.replace(Buffer("ann"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ann", -2), "must be from -1"),
        (("ann", 3, 0, (Item("a", 0, b""),)), "must be at least its 1 samples: got 0"),
        (("ann", 3, 5, (Item("a", 0, b""), Item("a", 1, b""))), "holds a sample twice"),
        (("ann", 3, 5, (Item("a", 4, b""),)), "sample 'a' of period 4: expected 0 to 3"),
        (("ann", 3, 5, (Item("a", 3, "text"),)), "payload of type str: expected bytes"),
        (("ann\ud800", 3), "half of a surrogate pair"),
        (("ann", 3, 5, (Item("\udc00", 3, b""),)), "half of a surrogate pair"),
    ],
)
def test_buffers_that_make_no_sense(arguments, message):
    with pytest.raises(InputError, match=message):
        Buffer(*arguments)


def test_numpy_numbers_are_welcome(path):
    import numpy as np

    with Store.open(path) as store:
        store.replace(Buffer("ann", np.int64(2), np.uint16(9), [("a", np.int32(1), b"x")]))
        assert store.load("ann") == Buffer("ann", 2, 9, (Item("a", 1, b"x"),))


def test_a_full_disk_leaves_the_old_buffers(path):
    with Store.open(path) as store:
        old = buffer_of("ann", 0)
        store.replace(old)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages + 3}")
        with pytest.raises(ReplayError, match=r"buffers\.sqlite' can't be written: the disk is full; the buffers are"):
            store.replace(buffer_of("bo", 1), buffer_of("ann", 1, 1000))
        assert store.load("ann") == old
        assert store.clients() == ["ann"]
        store._db.execute("PRAGMA max_page_count = 100000")
        store.replace(buffer_of("ann", 1, 1000))
    with Store.open(path) as store:
        assert store.load("ann") == buffer_of("ann", 1, 1000)


def test_a_write_that_the_system_refuses_leaves_the_old_buffers(path):
    with Store.open(path) as store:
        store.replace(buffer_of("ann", 0))
    program = (
        "import resource, sys\n"
        "from coreplay.replay import Buffer, Item, ReplayError, Store\n"
        "store = Store.open(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    store.replace(Buffer('ann', 1, 1, (Item('a', 1, bytes(10**6)),)))\n"
        "except ReplayError as error:\n"
        "    print(error)\n"
        "print(store.load('ann').period)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    message, period = done.stdout.splitlines()
    assert "the buffers are as they were" in message
    assert period == "0"
    with Store.open(path) as store:
        assert store.load("ann") == buffer_of("ann", 0)


def write_own(folder, client, together):
    for k in range(10):
        together.wait()
        with Store.open(folder / f"{k}.sqlite") as store:
            for period in range(3):
                store.replace(buffer_of(client, period, 2))


def test_processes_that_make_and_write_one_store_at_once(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # where a fresh process finds this module
    context = get_context("spawn")
    names = [f"client {k}" for k in range(4)]
    together = context.Barrier(len(names), timeout=60)
    workers = [context.Process(target=write_own, args=(tmp_path, name, together)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    for k in range(10):
        with Store.open(tmp_path / f"{k}.sqlite") as store:
            assert store.clients() == names
            assert all(store.load(name) == buffer_of(name, 2, 2) for name in names)


def test_a_fork_must_open_its_own(path, monkeypatch):
    with Store.open(path) as store:
        monkeypatch.setattr("os.getpid", lambda: 1)
        with pytest.raises(ReplayError, match="was opened in another process"):
            store.load("ann")


def test_killed_while_writing():
    """A bounded run of the benchmark: every kill leaves whole buffers, none older than was acknowledged."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.replay_kill", "--kills", "12"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 kills: 0 torn, 0 lost" in done.stdout


@given(client=st.text(), other=st.text())
def test_file_names_are_safe_and_differ(client, other):
    path = path_for("folder", client)
    assert path.parent == Path("folder")
    assert path.name.isascii()
    assert path.name == path.name.lower()
    assert len(path.name) < 100
    assert set(path.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    assert (path == path_for("folder", other)) == (client == other)


@pytest.mark.parametrize("client", ["../../x", "/etc/passwd", "CON", "a" * 10_000, "", ".", "Ünï\ncode\0", "-rf"])
def test_odd_names_make_usable_files(tmp_path, client):
    with Store.open(path_for(tmp_path, client)) as store:
        store.replace(buffer_of(client, 0))
    assert [p.parent for p in tmp_path.rglob("*")] == [tmp_path]
    assert path_for("f", client) != path_for("f", client + " ")
