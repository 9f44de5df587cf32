"""What a node of Flower was started with. Light: a deployed client reads it in a new process for every message."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.errors import RefusedError

STATE, PLUGINS = "COREPLAY_STATE", "COREPLAY_PLUGINS"


class BusyError(RefusedError):
    """Another process works on the client's files."""

    def __init__(self, node: "Node") -> None:
        super().__init__(
            f"another process has the files of {node.owner[:40]!r}: is a second node running with this client-id and "
            "state folder? Stop it, or give it a client-id of its own"
        )


@dataclass(frozen=True)
class Node:
    """What a node was started with: where it keeps its state, whose data it has, and how many threads it may use.

    In Flower's words, the node config: `state`, `client-id`, `data`, `threads`, `resident`, `plugins`; instead of
    `client-id` `partition-id`, the number of the client in the stream of the run's configuration. A resident node keeps
    a process between messages (see `resident`): by default where the node config names the state, as in a deployment.
    `plugins` allows the server to send code that this node runs.
    """

    state: Path
    client: str | None
    partition: int | None
    data: str | None = None
    threads: int = 1
    resident: bool = False
    plugins: bool = False

    @property
    def owner(self) -> str:
        """Whose files these are: the client's id, or its number."""
        return self.client if self.client is not None else f"partition {self.partition}"

    @classmethod
    def read(cls, config: dict[str, Any]) -> "Node":
        """Read Flower's node config; what is missing there may be in the environment."""
        state = config.get("state") or os.environ.get(STATE)
        if not state:
            raise RefusedError(
                f"this node has no folder for its buffers: give it one with --node-config state=… or {STATE}"
            )
        client, partition = config.get("client-id"), config.get("partition-id")
        if client is None and partition is None:
            raise RefusedError(
                "this node does not know whose data it has: name the client with --node-config client-id=…"
            )
        data = config.get("data")
        return cls(
            Path(str(state)),
            None if client is None else str(client),
            None if partition is None else int(partition),
            None if data is None else str(data),
            int(config.get("threads", 1)),
            _switch(config, "resident", "state" in config),
            _switch(config, "plugins", os.environ.get(PLUGINS) == "true"),
        )


def _switch(config: dict[str, Any], name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise RefusedError(f"node config {name}={str(value)[:40]!r}: must be true or false")
    return value
