"""What a node of Flower was started with, and its client's state. Light: every message to a deployed node reads it.

One process at a time works on a client's state: after a kill, a process of the old node may still be at work when the
new one begins, and the lock makes the new one wait. The state has an id, which tells a client that came back (the same
files) from another one that was given the same name.
"""

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.errors import RefusedError
from coreplay.files import make_folder, write_text
from coreplay.replay import path_for

STATE, PLUGINS = "COREPLAY_STATE", "COREPLAY_PLUGINS"
PATIENCE = 30.0  # seconds that another process gets to end
LOOK = 0.1


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

    @classmethod
    def read(cls, config: dict[str, Any]) -> "Node":
        """Read Flower's node config; what is missing there may be in the environment."""
        state = config.get("state") or os.environ.get(STATE)
        if not state:
            raise RefusedError(
                f"this node has no folder for its buffers: give it one with --node-config state=… or {STATE}"
            )
        client, partition, data = (config.get(name) for name in ("client-id", "partition-id", "data"))
        if client is None and partition is None:
            raise RefusedError(
                "this node does not know whose data it has: name the client with --node-config client-id=…"
            )
        return cls(
            Path(str(state)),
            None if client is None else str(client),
            None if partition is None else int(partition),
            None if data is None else str(data),
            int(config.get("threads", 1)),
            _switch(config, "resident", "state" in config),
            _switch(config, "plugins", os.environ.get(PLUGINS) == "true"),
        )

    @property
    def owner(self) -> str:
        """Whose files these are: the client's id, or its number."""
        return self.client if self.client is not None else f"partition {self.partition}"

    @property
    def folder(self) -> Path:
        """Where the client's files are; its lock and the id of its state are beside it."""
        return path_for(self.state, self.owner).with_suffix("")

    @property
    def state_id(self) -> str:
        """The id of the client's state, made once."""
        place = self.folder.with_suffix(".id")
        if not place.exists():
            write_text(place, uuid.uuid4().hex)
        return place.read_text(encoding="utf-8")

    @contextmanager
    def lock(self, patience: float = PATIENCE) -> Iterator[None]:
        """Hold the lock of the client's state; the system frees it when the process ends, however that happens."""
        make_folder(self.state, private=True)
        with self.folder.with_suffix(".lock").open("ab") as file:
            until = time.monotonic() + patience
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise BusyError(self) from None
                    time.sleep(LOOK)
            yield


def _switch(config: dict[str, Any], name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise RefusedError(f"node config {name}={str(value)[:40]!r}: must be true or false")
    return value
