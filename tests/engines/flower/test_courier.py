"""Who speaks for a client: Flower's own grid and our client app, in one process."""

import secrets
import threading
import uuid
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.common.constant import HEARTBEAT_INTERVAL_INF, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from coreplay.engines import prepare
from coreplay.engines.flower.apps import handle
from coreplay.engines.flower.engine import FlowerEngine
from tests.engines.flower.common import digits

RUN, TASK = 7, 8


class Nodes:
    """Flower's state and grid, and a thread that lets the nodes answer."""

    def __init__(self, folder: Path) -> None:
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self.state, self.folder, self.configs = factory.state(), folder, {}
        run = Run.create_empty(run_id=RUN)
        run.primary_task_id, run.federation_id = TASK, NOOP_FEDERATION_ID
        self.state.run_ids[RUN] = RunRecord(run=run)
        self.state.task_store[TASK] = Task(task_id=TASK, run_id=RUN)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, SUPERLINK_NODE_ID
        self.grid = InMemoryGrid(factory)
        self.grid.set_run(run)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def add(self, state: str, **config) -> int:
        node = self.state.create_node(
            NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), heartbeat_interval=HEARTBEAT_INTERVAL_INF
        )
        self.state.acknowledge_node_heartbeat(node_id=node, heartbeat_interval=HEARTBEAT_INTERVAL_INF)
        self.configs[node] = config | {"state": str(self.folder / state), "resident": False}
        return node

    def remove(self, node: int) -> None:
        self.state.delete_node(NOOP_FLWR_AID, node)

    def _serve(self) -> None:
        while not self._stop.wait(0.01):
            for node, config in list(self.configs.items()):
                for message in self.state.get_message_ins(node_id=node, limit=1):
                    reply = handle(message, Context(RUN, node, config, RecordDict(), {}))
                    reply.metadata.__dict__["_message_id"] = str(uuid.uuid4())
                    self.state.store_message_res(reply)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


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
