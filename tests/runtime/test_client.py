"""The client runtime by itself: what it holds, erasure, repeated, incomplete and unknown requests."""

import numpy as np
import pytest

from coreplay.errors import RefusedError
from coreplay.learning import FlatModel
from coreplay.replay import ReplayError, Store
from coreplay.runtime import ClientRuntime, Config, prepare
from coreplay.runtime.requests import MODEL, Contribute, Erase, Inspect, Join, Select, Settle, Train

DIGITS = {
    "stream": {"source": "digits", "options": {"num_clients": 2, "num_periods": 2}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "replay": {"strategy": "corrective", "budget": 4},
    "gradients": {"sketch_size": 64},
}


@pytest.fixture
def runtime(tmp_path):
    config = Config.make(DIGITS)
    made = prepare(config)
    with Store.open(tmp_path / "buffers.sqlite") as store:
        flat = FlatModel(made.task.model(0))
        found = ClientRuntime(config, made.stream, made.task, flat, store, tmp_path / "scratch")
        found.start = {MODEL: made.start}
        yield found


def test_a_request_that_comes_twice_gets_the_same_reply(runtime):
    client = runtime.stream.clients[0]
    first, second = (runtime.handle(client, Train(arrays=runtime.start)).arrays["change"].copy() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    asked = Contribute(arrays=runtime.start, session="s")
    assert runtime.handle(client, asked).data == runtime.handle(client, asked).data
    settle = Settle(arrays=runtime.start, session="s")
    kept = [runtime.handle(client, settle).kept for _ in range(2)]
    assert kept == [4, 4]
    held = runtime.store.load(client)
    runtime.handle(client, settle)
    assert runtime.store.load(client) == held


def test_what_is_held_and_erasure(runtime):
    client = runtime.stream.clients[0]
    assert (runtime.handle(client, Inspect()).kept, runtime.handle(client, Inspect()).held) == (0, -1)
    runtime.handle(client, Settle(arrays=runtime.start))
    found = runtime.handle(client, Inspect(run="r", period=3, round=1))
    assert (found.kept, found.held, found.client) == (4, 0, client)
    assert found.stamp() == ("inspect", "r", 3, 1)
    gone = runtime.store.load(client).items[0].key
    assert runtime.handle(client, Erase(key=gone)).kept == 3
    assert gone not in {item.key for item in runtime.store.load(client).items}
    with pytest.raises(ReplayError, match="has no sample"):
        runtime.handle(client, Erase(key=gone))


def test_a_pool_is_read_once_and_again_when_the_buffer_has_changed(runtime):
    client = runtime.stream.clients[0]
    runtime.handle(client, Settle(arrays=runtime.start))
    pool = runtime.pool(client, 1)
    assert runtime.pool(client, 1) is pool
    gone = int(pool.samples.ids[~pool.new][0])
    with Store.open(runtime.store.path) as other:  # somebody else's process
        other.erase(client, f"{gone:016x}")
    again = runtime.pool(client, 1)
    assert len(again) == len(pool) - 1
    assert gone not in again.samples.ids
    runtime.store.rewind(-1)
    assert runtime.pool(client, 1).new.all()
    assert runtime.pool(client, 0).period == 0


def test_an_unknown_request_is_refused(runtime):
    with pytest.raises(RefusedError, match="unsupported request 'join'"):
        runtime.handle(runtime.stream.clients[0], Join())


def test_a_request_without_its_model_is_refused(runtime):
    with pytest.raises(ValueError, match="the train message brings no array 'model'"):
        runtime.handle(runtime.stream.clients[0], Train())
    runtime.config = Config.make(DIGITS, {"replay.strategy": "polished"})
    with pytest.raises(ValueError, match="the select message brings no array 'model'"):
        runtime.handle(runtime.stream.clients[0], Select())
