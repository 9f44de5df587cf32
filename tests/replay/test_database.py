"""The file of a store: foreign, damaged, cut, of another version, in use, or readable by others."""

import os
import sqlite3

import pytest

from coreplay.replay import Buffer, Item, ReplayError, Store
from tests.replay.test_store import buffer_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "buffers.sqlite"


def filled(path, clients=30):
    with Store.open(path) as store:
        store.replace(*[buffer_of(f"client {k}", 0) for k in range(clients)])


def test_a_file_that_is_no_database(path):
    path.write_text("these are my notes\n" * 300)
    with pytest.raises(ReplayError, match="is no SQLite database"):
        Store.open(path)
    assert path.read_text() == "these are my notes\n" * 300


def test_the_database_of_another_program_stays_as_it_was(path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipe (name TEXT)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(ReplayError, match="is a database of another program"):
        Store.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA user_version = 4", "has version 4, this coreplay knows version 3"),
        ("DROP TABLE item", "its tables are not ours"),
        ("CREATE TRIGGER t AFTER INSERT ON item BEGIN DELETE FROM item; END", "its tables are not ours"),
    ],
)
def test_a_store_of_another_version_or_with_other_tables(path, statement, message):
    filled(path)
    other = sqlite3.connect(path)
    other.execute(statement)
    other.commit()
    other.close()
    with pytest.raises(ReplayError, match=message):
        Store.open(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE item SET payload = x'00' WHERE position = 3",
        "DELETE FROM item WHERE position = 19",
        "UPDATE item SET key = key || 'x' WHERE position = 0",
        "UPDATE item SET period = 7 WHERE position = 0",
        "UPDATE item SET payload = 'text' WHERE position = 3",
        "UPDATE item SET period = 'then' WHERE position = 3",
        "UPDATE buffer SET seen = seen + 1",
        "UPDATE buffer SET seen = 0.5",
        "UPDATE buffer SET digest = 'x'",
    ],
)
def test_a_changed_buffer_is_noticed_on_loading(path, statement):
    filled(path)
    other = sqlite3.connect(path)
    other.execute(statement)
    other.commit()
    other.close()
    with (
        Store.open(path) as store,
        pytest.raises(ReplayError, match="'client 3' after period 0 is not what was written"),
    ):
        store.load("client 3")


def test_a_damaged_or_cut_file_is_noticed(path):
    """Whatever page is overwritten or missing: an error, or exactly what was written."""
    filled(path)
    good = path.read_bytes()
    noticed = 0
    for page in range(len(good) // 4096):
        for bad in (
            good[: page * 4096 + 100] + b"\xa5" * 600 + good[page * 4096 + 700 :],
            good[: page * 4096 + 2048],
        ):
            path.write_bytes(bad)
            try:
                with Store.open(path) as store:
                    for client in store.clients():
                        assert store.load(client) == buffer_of(client, 0)
            except ReplayError:
                noticed += 1
            for left in path.parent.glob("*-wal"):
                left.unlink()
    assert noticed > len(good) // 4096


def test_places_where_no_store_can_be(tmp_path):
    with pytest.raises(ReplayError, match="can't be opened or made"):
        Store.open(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ReplayError, match="can't be opened or made"):
        Store.open(tmp_path / "file" / "buffers.sqlite")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written(path):
    filled(path)
    path.chmod(0o400)
    with pytest.raises(ReplayError, match="can't be written"):
        Store.open(path)


def test_a_store_that_another_process_keeps_locked(path, monkeypatch):
    monkeypatch.setattr("coreplay.replay.database.PATIENCE", 0.01)
    with Store.open(path) as store, Store.open(path) as other:
        other._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(ReplayError, match="is locked by another process"):
            store.replace(buffer_of("ann", 0))
        assert store.clients() == []  # reading goes on
        other._db.execute("ROLLBACK")
        store.replace(buffer_of("ann", 0))
        assert other.load("ann") == store.load("ann")


def test_a_store_is_for_its_user_alone(tmp_path, modes):
    path = tmp_path / "new/buffers.sqlite"
    with Store.open(path) as store:
        store.replace(Buffer("ann", 0, 1, (Item("1", 0, b"play jazz"),)))
        found = modes(tmp_path)
    assert found["new"] == 0o700
    assert {name: mode for name, mode in found.items() if "sqlite" in name} == {
        f"new/buffers.sqlite{suffix}": 0o600 for suffix in ("", "-wal", "-shm")
    }
    path.chmod(0o644)  # as an earlier coreplay left it
    path.parent.chmod(0o755)  # a folder that was there stays as it is
    with Store.open(path):
        found = modes(tmp_path)
    assert found["new"] == 0o755
    assert found["new/buffers.sqlite"] == 0o600


def test_a_pipe_is_no_store(tmp_path):
    os.mkfifo(tmp_path / "pipe.sqlite")
    with pytest.raises(ReplayError, match=r"pipe\.sqlite'.* is no file"):
        Store.open(tmp_path / "pipe.sqlite")
