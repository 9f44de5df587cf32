"""States of learning hooks and answers in a coordination, beside the buffers."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay.replay import ReplayError, Store
from tests.replay.test_store import buffer_of

MOMENTS = st.tuples(st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(MOMENTS, st.binary(max_size=4), MOMENTS), max_size=12))
def test_the_last_state_before_a_round_comes_back(steps, tmp_path_factory):
    """As far back as the run may go; a state of the same or a later round replaces those from before a resume."""
    path, model = tmp_path_factory.mktemp("store") / "s.sqlite", {}
    keep_from = (0, 0)
    with Store.open(path) as store:
        for drawn, value, back_to in steps:
            moment = max(drawn, keep_from)  # a run never goes back further than it said
            keep_from = min(moment, max(back_to, keep_from))
            store.save_state("ann", moment, value, keep_from)
            store.save_state("bo", moment, b"other", keep_from)
            model = {at: kept for at, kept in model.items() if at < moment} | {moment: value}
            for period in range(5):
                for round in range(5):
                    before = (period, round)
                    expected = max((at for at in model if at < before), default=None)
                    if before >= keep_from:
                        assert store.state("ann", before) == model.get(expected)


def test_old_states_are_deleted_once_the_run_can_not_go_back_to_them(tmp_path):
    with Store.open(tmp_path / "s.sqlite") as store:
        for round in range(6):
            store.save_state("ann", (0, round), b"%d" % round, (0, max(round - 1, 0)))
    found = sqlite3.connect(tmp_path / "s.sqlite").execute("SELECT round FROM state ORDER BY round").fetchall()
    assert found == [(3,), (4,), (5,)], "the last one before round 4, and what came after it"


def write_and_fail(store):
    with store.deferred():
        store.replace(buffer_of("ann", 1))
        store.save_session("ann", b"later")
        raise KeyboardInterrupt


def test_deferred_writes_are_one_transaction_and_none_if_the_block_fails(tmp_path):
    with Store.open(tmp_path / "s.sqlite") as store:
        with store.deferred():
            store.replace(buffer_of("ann", 0))
            store.save_state("ann", (0, 0), b"state", (0, 0))
            store.save_session("ann", b"answers")
            assert store.load("ann").items == (), "nothing is written before the end of the block"
        assert store.load("ann") == buffer_of("ann", 0)
        assert (store.state("ann", (1, 0)), store.session("ann")) == (b"state", b"answers")
        with pytest.raises(KeyboardInterrupt):
            write_and_fail(store)
        assert store.load("ann") == buffer_of("ann", 0)
        assert store.session("ann") == b"answers"
        store.replace(buffer_of("ann", 1))
        assert store.load("ann").period == 1, "after a failed block writes go through again"


def test_states_and_sessions_go_back_with_the_buffers(tmp_path):
    with Store.open(tmp_path / "s.sqlite") as store:
        for period in range(3):
            store.save_state("ann", (period, 0), b"%d" % period, (0, 0))
            store.replace(buffer_of("ann", period))
        store.save_session("ann", b"answers")
        before = store.fingerprint((2, 0))
        assert before != store.fingerprint((1, 0))
        store.rewind(1)
        assert store.session("ann") is None
        assert store.state("ann", (2, 0)) == b"1"
        assert store.fingerprint((2, 0)) == before
        store.save_state("ann", (1, 0), b"another", (0, 0))
        assert store.fingerprint((2, 0)) != before


def test_a_changed_state_is_noticed(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        store.save_state("ann", (0, 0), b"state", (0, 0))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE state SET value = ?", (b"stale",))
    database.close()
    with Store.open(path) as store, pytest.raises(ReplayError, match=r"state of client 'ann'|damaged"):
        store.state("ann", (1, 0))
