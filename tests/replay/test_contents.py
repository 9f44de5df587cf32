"""Samples in buffers: they come back as they were, and the bytes of plain samples never change."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.replay import Buffer, Item, decode, encode
from coreplay.replay.contents import BufferStats, buffer_stats, items_of, samples_of
from tests.data.shared import samples


@given(samples())
def test_samples_come_back_from_a_buffer(sent):
    items = items_of(sent)
    assert [item.period for item in items] == sent.arrived.tolist()
    got = samples_of(items, sent)
    if isinstance(sent.content, np.ndarray):
        np.testing.assert_array_equal(got.content, sent.content, strict=True)
    else:
        assert got.texts == sent.texts
    assert got.label_names == sent.label_names
    for name in ("ids", "label", "timestamp", "arrived", "weight"):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name), strict=True)
    assert got.extras.keys() == sent.extras.keys()
    for name, column in sent.extras.items():
        np.testing.assert_array_equal(got.extras[name], column, strict=True)
    assert items_of(got) == items


STREAM = FederatedStream(["a", "b"], [0, 1], [False] * 2, ["hi", "stop"], ["x", None], [5, 60])


def test_the_bytes_of_plain_samples_are_those_of_earlier_versions():
    (item,) = items_of(STREAM.samples("a", 0))
    assert item.key == f"{STREAM.ids[0]:016x}"
    assert item.payload == encode({"content": "hi", "label": "x", "timestamp": 5})
    assert item.payload == (
        b'@\x00\x00\x00\x00\x00\x00\x00{"json":{"dtype":"U8","shape":[42],"data_offsets":[0,42]}}      '
        b'{"content":"hi","label":"x","timestamp":5}'
    )
    with_weight = items_of(STREAM.samples("a", 0).replaced(weight=0.5))[0].payload
    assert decode(with_weight)["weight"] == 0.5


def test_extra_columns_of_some_items():
    plain, other = STREAM.samples("a", 0), STREAM.samples("b", 1)
    got = samples_of((*items_of(plain), *items_of(other.with_columns(out=np.ones((1, 2))))), plain)
    assert np.isnan(got.extras["out"]).all(axis=1).tolist() == [True, False]
    with pytest.raises(InputError, match="'out' of dtype bool is missing in 1 samples"):
        samples_of((*items_of(plain), *items_of(other.with_columns(out=np.ones(1, dtype=bool)))), plain)


def test_items_of_another_stream_or_app_are_refused():
    with pytest.raises(InputError, match=r"sample 17 has no \['content', 'timestamp'\]"):
        samples_of([Item("17", 0, encode({"label": "x"}))], STREAM.all())
    with pytest.raises(InputError, match="sample 17 has label 'y', unknown in this stream"):
        samples_of([Item("17", 0, encode({"content": "hi", "label": "y", "timestamp": 5}))], STREAM.all())


def test_stats_count_clients_periods_and_distinct_contents():
    stream = FederatedStream(list("aabc"), [0, 2, 2, 1], [False] * 4, pa.array(["hi", "no", "hi", "stop"]))
    buffers = [Buffer("a", 2, 2, items_of(stream.all()[[0, 1]])), Buffer("b", 2, 1, items_of(stream.all()[[2]]))]
    assert buffer_stats([*buffers, Buffer("c")], 4) == BufferStats(2, 3, [1, 0, 2, 0], 2)
    images = FederatedStream(list("ab"), [0, 0], [False] * 2, np.ones((2, 3, 3)))
    assert buffer_stats([Buffer("a", 0, 2, items_of(images.all()))], 1) == BufferStats(1, 2, [2], 1)
