"""Flower's own grid in memory, with nodes that run the real client code in a thread of the test."""

import secrets
import threading
import uuid
from pathlib import Path

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

from coreplay.flower.app import handle

RUN, TASK = 7, 8


class Packed:
    """A grid that is not known for a simulation's: models are packed into messages, as in a deployment."""

    def __init__(self, grid: InMemoryGrid) -> None:
        self.get_node_ids, self.push_messages, self.pull_messages = (
            grid.get_node_ids,
            grid.push_messages,
            grid.pull_messages,
        )


class Nodes:
    """Flower's state and grid, and a thread that lets the nodes answer; `answer` may be changed for single nodes."""

    def __init__(self, folder: Path) -> None:
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self.state, self.folder, self.configs = factory.state(), folder, {}
        self.answers = {}
        run = Run.create_empty(run_id=RUN)
        run.primary_task_id, run.federation_id = TASK, NOOP_FEDERATION_ID
        self.state.run_ids[RUN] = RunRecord(run=run)
        self.state.task_store[TASK] = Task(task_id=TASK, run_id=RUN)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, SUPERLINK_NODE_ID
        grid = InMemoryGrid(factory)
        grid.set_run(run)
        self.grid = Packed(grid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def add(self, state: str, answer=handle, **config) -> int:
        node = self.state.create_node(
            NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), heartbeat_interval=HEARTBEAT_INTERVAL_INF
        )
        self.state.acknowledge_node_heartbeat(node_id=node, heartbeat_interval=HEARTBEAT_INTERVAL_INF)
        self.answers[node] = answer
        self.configs[node] = config | {"state": str(self.folder / state), "resident": False}
        return node

    def remove(self, node: int) -> None:
        self.state.delete_node(NOOP_FLWR_AID, node)

    def _serve(self) -> None:
        while not self._stop.wait(0.01):
            for node, config in list(self.configs.items()):
                for message in self.state.get_message_ins(node_id=node, limit=1):
                    reply = self.answers[node](message, Context(RUN, node, config, RecordDict(), {}))
                    reply.metadata.__dict__["_message_id"] = str(uuid.uuid4())
                    self.state.store_message_res(reply)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
