"""Messages as bytes and as Flower's records, and the client of a node, without Flower's processes."""

import gc
import pickle
import weakref
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from coreplay import plugins, registry
from coreplay.codec import encode
from coreplay.errors import InputError, RefusedError
from coreplay.flower.client import NodeClient
from coreplay.flower.messages import from_bytes, from_record, is_shared, size_of, to_bytes, to_record, wrap
from coreplay.flower.node import Node
from coreplay.runtime.client import ClientRuntime
from coreplay.runtime.requests import EvaluateReply, Inspect, Join, Joined, Train, TrainReply
from tests.flower.common import digits

RUN = "0" * 32


def respond(node, request):
    return NodeClient(node, request.run).answer(request)


@given(
    st.text(max_size=20),
    st.integers(0, 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.dictionaries(st.text(max_size=5), st.lists(st.floats(width=32)).map(np.float32)),
    st.binary(max_size=50),
)
def test_a_message_arrives_as_it_was_sent(name, number, total, arrays, data):
    sent = TrainReply(run=name, period=number, round=3, client=name, to="train", total=total, arrays=arrays, data=data)
    for shared in (False, True):
        record = to_record(sent, shared=shared)
        found = from_record(record)
        assert found.small_fields() == sent.small_fields()
        assert found.data == data
        assert {key: array.tobytes() for key, array in found.arrays.items()} == {
            key: array.tobytes() for key, array in arrays.items()
        }
        assert size_of(record) >= len(data) + sum(array.nbytes for array in arrays.values())


def test_tuples_and_tables_survive():
    request = from_bytes(to_bytes(Train(keep_from=(1, 2))))
    assert request.keep_from == (1, 2)
    joined = from_bytes(to_bytes(Join(config={"a": {"b": [1, None]}}, artifacts={"vocabulary": "x"})))
    assert joined.config == {"a": {"b": [1, None]}}


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "dance"},
        {"kind": 3},
        {"fields": "{"},
        {"fields": []},
        {"data": "text"},
        {"extra": 1},
        {"fields": {"period": "one"}},
        {"fields": {"period": True}},
        {"fields": {"period": 1.0}},
    ],
)
def test_what_is_no_message_is_refused(change):
    plain = {"kind": "joined", "fields": Joined().small_fields(), "data": np.zeros(0, np.uint8)}
    assert isinstance(from_record(wrap(encode(plain))), Joined)
    if isinstance(change.get("fields"), dict):
        change = {"fields": plain["fields"] | change["fields"]}
    with pytest.raises(InputError):
        from_record(wrap(encode(plain | change)))


@pytest.mark.parametrize("value", [10**400, True, "1", None, [1]])
def test_numbers_of_strangers_are_checked(value):
    fields = EvaluateReply().small_fields() | {"totals": [value]}
    with pytest.raises(InputError, match="'totals' of a evaluated message has a wrong value"):
        from_record(wrap(encode({"kind": "evaluated", "fields": fields, "data": np.zeros(0, np.uint8)})))


def test_records_of_others_are_refused():
    packed = to_bytes(Joined())
    for record in (
        RecordDict(),
        RecordDict({"coreplay": ConfigRecord({"kind": "train"})}),
        RecordDict({"coreplay": ArrayRecord({"another": Array(np.zeros(3))})}),
        RecordDict({"coreplay": ArrayRecord({"coreplay": Array(np.zeros(3))})}),
        RecordDict({"coreplay": ArrayRecord({"coreplay": Array("uint8", (9,), "", packed[:-1])})}),
        RecordDict(dict(wrap(packed).items()) | {"arrays": ArrayRecord({"change": Array(np.zeros(3))})}),
    ):
        with pytest.raises(InputError):
            from_record(record)


def test_a_message_that_was_read_and_its_vector_are_gone_at_once():
    """Not when the collector comes: on Ray each keeps a whole model in shared memory until then."""
    record = to_record(TrainReply(arrays={"change": np.float32([1, 2])}), shared=True)
    assert is_shared(record)
    sent = weakref.ref(record["arrays"]["change"])
    gc.disable()
    try:
        message = from_record(record)
        del record, message
        assert sent() is None
    finally:
        gc.enable()


def test_shared_arrays_are_handed_over_as_buffers_of_their_own():
    sent = TrainReply(arrays={"change": np.arange(1000, dtype=np.float32)})
    buffers = []
    packed = pickle.dumps(to_record(sent, shared=True), 5, buffer_callback=buffers.append)
    assert len(packed) < 2000
    found = pickle.loads(packed, buffers=[memoryview(bytes(b.raw())) for b in buffers])
    assert is_shared(found)
    assert not is_shared(to_record(sent))
    vector = from_record(found).arrays["change"]
    assert vector.tobytes() == sent.arrays["change"].tobytes()
    assert not vector.flags.writeable  # it is in another process's memory


@pytest.mark.parametrize("run", ["../../etc", "", "A" * 32, "0" * 31])
def test_a_run_id_that_is_none_never_becomes_a_path(run, tmp_path):
    found = NodeClient(Node(tmp_path, "ann", None), run).answer(Inspect(run=run))
    assert found.error == "the run's id is not valid"
    assert not list(tmp_path.iterdir())


def test_nodes_say_what_they_lack(tmp_path, monkeypatch):
    monkeypatch.delenv("COREPLAY_STATE", raising=False)
    with pytest.raises(RefusedError, match="folder"):
        Node.read({"client-id": "ann"})
    with pytest.raises(RefusedError, match="client-id"):
        Node.read({"state": str(tmp_path)})
    with pytest.raises(RefusedError, match="plugins='false': must be true or false"):
        Node.read({"state": str(tmp_path), "client-id": "ann", "plugins": "false"})
    monkeypatch.setenv("COREPLAY_STATE", str(tmp_path))
    assert Node.read({"partition-id": 3}).partition == 3
    assert "has not joined the run" in respond(Node(tmp_path, "ann", None), Inspect(run=RUN)).error


def test_what_goes_wrong_at_a_client_never_quotes_its_data(tmp_path):
    secret = tmp_path / "data.jsonl"
    secret.write_text('{"client": "ann", "text": "my secret diary"\n')
    node = Node(tmp_path / "state", "ann", None, str(secret))
    config = {
        "stream": {"source": "files", "options": {}, "num_clients": None, "client_seed": 0},
        "task": {"options": {}},
        "plugins": [],
    }
    reply = respond(node, Join(run=RUN, config=config))
    assert reply.error.endswith("the log of its node says more")
    assert "diary" not in reply.error


def test_metrics_that_are_not_finite_are_a_failure_of_the_client(tmp_path, monkeypatch):
    client = NodeClient(Node(tmp_path, "client0", None), RUN)
    assert isinstance(client.answer(Join(run=RUN, config=digits().model_dump(mode="json"))), Joined)
    for reply in (TrainReply(total=float("nan")), replace(Joined(), train=[float("inf")])):
        monkeypatch.setattr(ClientRuntime, "handle", lambda *_, reply=reply: reply)
        assert client.answer(Train(run=RUN)).error == "its metrics are NaN or infinite"


PLUGIN = '''
import coreplay

@coreplay.selector("first_of_plugin")
def first(pool, budget, rng):
    """Keep the first samples{text}."""
    return list(range(budget))
'''


@pytest.fixture
def no_plugins(monkeypatch):
    monkeypatch.setattr(plugins, "_loaded", {})
    before = set(registry.own)
    yield
    for key in set(registry.own) - before:
        registry.forget(registry.own[key])


def test_a_node_runs_the_code_of_a_server_only_if_it_allows_that(tmp_path, no_plugins):
    config = digits().model_dump(mode="json") | {"plugins": ["/server/first.py"]}
    config["replay"] |= {"strategy": "first_of_plugin"}
    request = Join(run=RUN, config=config, plugins={"first.py": PLUGIN.format(text="")})
    for plain in (request, replace(request, plugins={}), replace(request, config=config | {"plugins": []})):
        refused = respond(Node(tmp_path / "closed", "client0", None), plain)
        assert "only if it is started with the node config plugins=true" in refused.error
    assert "first_of_plugin" not in selectors()
    node = Node(tmp_path / "open", "client0", None, plugins=True)
    reply = respond(node, request)
    assert isinstance(reply, Joined), reply
    assert selectors()["first_of_plugin"] == "Keep the first samples."
    assert [path.name for path in (tmp_path / "open").glob(f"*/{RUN}/plugins/*")] == ["first.py"]

    # the same process serves another run, with another version of the file
    other = replace(request, run="1" * 32, plugins={"first.py": PLUGIN.format(text=" again")})
    assert isinstance(respond(node, other), Joined)
    assert selectors()["first_of_plugin"] == "Keep the first samples again."
    wrong = replace(request, run="2" * 32, plugins={"wrong.py": "x = 1 / 0"})
    assert "can't be loaded, line 1: ZeroDivisionError" in respond(node, wrong).error
    not_any_more = respond(Node(tmp_path / "open", "client0", None), Inspect(run=RUN))
    assert "only if it is started with the node config plugins=true" in not_any_more.error


def selectors():
    from coreplay.selection import selectors

    return selectors()
