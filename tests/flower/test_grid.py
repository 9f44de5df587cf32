"""Who speaks for a client: Flower's own grid and our client app, in one process."""

import numpy as np
import pytest

from coreplay.flower.engine import FlowerEngine
from coreplay.flower.grid import GridEngine, Outcome
from coreplay.runtime import prepare
from coreplay.runtime.requests import MODEL, Contribute, ContributeReply, Settle
from tests.flower.common import digits
from tests.flower.nodes import Nodes


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    yield made
    made.close()


def test_a_second_node_with_a_client_id_is_refused_while_the_first_is_connected(nodes, tmp_path):
    settings = digits()
    engine = FlowerEngine(nodes.grid, settings, tmp_path / "run", prepare(settings).task)
    said = []

    def found():
        said.clear()
        engine.discover(lambda report: said.append(report.text), 0)
        return dict(engine.nodes)

    first = nodes.add("one", **{"client-id": "client0"})
    assert found() == {"client0": first}
    rival = nodes.add("two", **{"client-id": "client0"})
    assert found() == {"client0": first}
    assert "'client0' can't take part" in said[0]
    assert f"node {rival} has its client-id, but not the files of node {first}" in said[0]
    assert found() == {"client0": first}
    assert not said  # it is said once
    again = nodes.add("one", **{"client-id": "client0"})  # killed and started anew: the old one is still listed
    assert found() == {"client0": again}
    assert said == ["client 'client0' is reached at another node now"]
    for node in (first, again):
        nodes.remove(node)
    assert found() == {"client0": rival}  # it takes the place of a client that is gone


class Recording(GridEngine):
    """An engine that notes which clients get the model, instead of sending anything."""

    join_request = register = None

    def _carry(self, requests, timeout):
        self.with_model = [client for client, _, request, _ in requests if MODEL in request.arrays]
        for client, *_ in requests:
            reply = ContributeReply(client=client) if client != "cy" else None
            yield Outcome(client, 1, reply, "" if reply else "is not connected")


def test_each_client_gets_the_model_of_a_coordination_once():
    engine = Recording(None, "run", quorum=1.0, timeout=1.0, max_in_flight=4, dimension=4)

    def with_model(kind, session, clients):
        request = kind(session=session, arrays={MODEL: np.zeros(3)})
        for _ in engine.ask([(client, request) for client in clients], lambda report: None, {}):
            pass
        return engine.with_model

    assert with_model(Contribute, "one", ["ann", "cy"]) == ["ann", "cy"]
    assert with_model(Contribute, "one", ["ann", "bo", "cy"]) == ["bo", "cy"]
    assert with_model(Settle, "one", ["ann", "bo", "cy"]) == ["cy"]
    assert with_model(Settle, "two", ["ann", "bo"]) == ["ann", "bo"]  # a period without an exchange
