"""The stream against lists of rows that are searched from end to end."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreplay.data import FederatedStream, Samples, load, save
from coreplay.data.sources.files import load_saved, saved_columns
from coreplay.errors import InputError

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "../../x", "", "ü\n", "con"]),
        st.integers(0, 3),
        st.booleans(),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.sampled_from(["p", "q", None]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=30,
)


def stream_of(rows):
    columns = [list(column) for column in zip(*rows, strict=True)]
    return FederatedStream(*columns, periods=4)


@given(ROWS)
def test_every_cell_holds_its_rows_in_the_order_of_time(rows):
    stream = stream_of(rows)
    assert stream.clients == tuple(sorted({row[0] for row in rows}))
    for split in ("train", "test"):
        counts = stream.counts(split)
        for k, client in enumerate(stream.clients):
            for period in range(4):
                found = [r for r in rows if r[:3] == (client, period, split == "test")]
                found.sort(key=lambda row: row[5])
                samples = stream.samples(client, period, split)
                assert counts[k, period] == len(samples) == len(found)
                assert samples.texts == [row[3] for row in found]
                assert samples.labels == [row[4] for row in found]
                assert samples.timestamp.tolist() == [row[5] for row in found]
    assert stream.counts().sum() == len(stream) == len(rows)
    of_one = [text for t in range(4) for text in stream.of_period(t, "test").texts]
    assert sorted(of_one) == sorted(row[3] for row in rows if row[2])


@given(ROWS, st.randoms())
def test_ids_depend_on_the_sample_alone(rows, random):
    stream = stream_of(rows)
    assert len(set(stream.ids.tolist())) == len(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)
    other = stream_of(shuffled)
    assert sorted(stream.ids.tolist()) == sorted(other.ids.tolist())
    fewer = [row for row in rows if row[0] == rows[0][0]]
    assert set(stream_of(fewer).ids.tolist()) <= set(stream.ids.tolist())


@given(ROWS)
def test_a_stream_comes_back_from_its_file(tmp_path_factory, rows):
    stream = stream_of(rows)
    path = tmp_path_factory.mktemp("stream") / "s.parquet"
    save(stream, path)
    assert saved_columns(path)
    back = load_saved(path)
    assert back.clients == stream.clients
    assert back.label_names == stream.label_names
    assert back.periods == stream.periods
    for name in ("ids", "label", "timestamp", "period", "test", "client_number"):
        np.testing.assert_array_equal(getattr(back, name), getattr(stream, name))
    assert back.content.to_pylist() == stream.content.to_pylist()


def test_cells_are_views_and_not_copies():
    images = np.random.default_rng(0).random((6, 4, 4))
    stream = FederatedStream(["b", "a"] * 3, [0] * 6, [False] * 6, images)
    assert np.shares_memory(stream.samples("a", 0).content, stream.content)
    texts = FederatedStream(["b", "a"] * 3, [0] * 6, [False] * 6, list("uvwxyz"))
    whole, part = texts.content.buffers(), texts.samples("b", 0).content.buffers()
    assert [buffer.address for buffer in whole[1:]] == [buffer.address for buffer in part[1:]]


def test_arrays_come_back_from_their_file(tmp_path):
    images = np.random.default_rng(0).random((6, 4, 3)).astype(np.float32)
    stream = FederatedStream(["b", "a"] * 3, [0, 1] * 3, [False] * 6, images)
    save(stream, tmp_path / "s.parquet")
    back = load_saved(tmp_path / "s.parquet")
    np.testing.assert_array_equal(back.content, stream.content)
    assert not back.has_times
    with pytest.raises(InputError, match=r"arrays of shape \(4, 3\)"):
        _ = back.all().texts


def test_samples_can_be_picked_and_joined():
    stream = FederatedStream(["a", "b", "c"], [0, 0, 0], [False] * 3, ["x", "y", "z"], ["l", "m", "l"])
    picked = stream.all()[[2, 0]]
    assert picked.texts == ["z", "x"]
    joined = Samples.joined([stream.samples("b", 0), picked])
    assert joined.texts == ["y", "z", "x"]
    assert joined.labels == ["m", "l", "l"]
    with pytest.raises(InputError, match="at least one"):
        Samples.joined([])
    other = FederatedStream(["a"], [0], [False], ["x"], ["k"])
    with pytest.raises(InputError, match="different label_names"):
        Samples.joined([picked, other.all()])


def test_cells_go_through_what_is_there():
    stream = FederatedStream(["a", "b"], [1, 0], [False, True], ["x", "y"])
    assert [(c, t, s.texts) for c, t, s in stream.cells()] == [("a", 1, ["x"])]
    assert [(c, t, s.texts) for c, t, s in stream.cells("test")] == [("b", 0, ["y"])]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda s: s.samples("zz", 0), "unknown client 'zz'"),
        (lambda s: s.samples("a", 7), "period must be 0 to 1: got 7"),
        (lambda s: s.of_period(-1), "period must be 0 to 1: got -1"),
        (lambda s: s.samples("a", 0, "tset"), "did you mean 'test'"),
        (lambda s: FederatedStream([], [], [], []), "at least one sample"),
        (lambda s: FederatedStream(["a"], [-1], [False], ["x"]), "periods must be 0"),
        (lambda s: FederatedStream(["a"], [0, 1], [False], ["x"]), "period must be as long as client, 1: got 2"),
        (lambda s: save(s, "stream.csv"), "use .parquet"),
    ],
)
def test_mistakes_are_explained(wrong, message):
    stream = FederatedStream(["a", "b"], [0, 1], [False, False], ["x", "y"])
    with pytest.raises(InputError, match=message):
        wrong(stream)


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "s.parquet"
    save(FederatedStream(["a"], [0], [False], ["x"]), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes(len(whole) // 3) + whole[40 + len(whole) // 3 :])
    with pytest.raises(InputError, match=r"s\.parquet' can't be read as a saved stream"):
        load_saved(path)


def test_finding_a_cell_does_not_search_the_stream():
    n = 200_000
    stream = FederatedStream([str(k % 1000) for k in range(n)], np.arange(n) % 10, np.zeros(n), ["x"] * n)
    _ = stream.ids
    began = time.perf_counter()
    for k in range(1000):
        assert len(stream.samples(str(k), k % 10)) == n // 1000
    print(f"{time.perf_counter() - began:.4f} s for 1000 cells")


def test_a_saved_stream_is_for_its_user_alone(tmp_path, modes):
    save(load("synthetic", num_clients=2, num_periods=2), tmp_path / "new/stream.parquet")
    assert {name: mode for name, mode in modes(tmp_path).items() if name != "."} == {
        "new": 0o700,
        "new/stream.parquet": 0o600,
    }
