"""Who speaks for a client: Flower's own grid and our client app, in one process."""

import pytest

from coreplay.flower.engine import FlowerEngine
from coreplay.runtime import prepare
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

    def look():
        said.clear()
        engine.look(lambda facts: said.append(facts["text"]))
        return dict(engine.courier.nodes)

    first = nodes.add("one", **{"client-id": "client0"})
    assert look() == {"client0": first}
    rival = nodes.add("two", **{"client-id": "client0"})
    assert look() == {"client0": first}
    assert "'client0' can't take part" in said[0]
    assert f"node {rival} has its client-id, but not the files of node {first}" in said[0]
    assert look() == {"client0": first}
    assert not said  # it is told once
    again = nodes.add("one", **{"client-id": "client0"})  # killed and started anew: the old one is still listed
    assert look() == {"client0": again}
    assert said == ["client 'client0' is reached at another node now"]
    for node in (first, again):
        nodes.remove(node)
    assert look() == {"client0": rival}  # it takes the place of a client that is gone
