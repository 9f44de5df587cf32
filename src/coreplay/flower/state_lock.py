"""A client's state on this machine: one process at a time works on it, and it has an id by which a server knows it.

After a kill, a process of the old node may still be at work when the new one begins; the lock makes the new one wait.
The id tells a client that came back (the same files) from another one that was given the same name.
"""

import fcntl
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coreplay.files import make_folder, write_text
from coreplay.flower.node import BusyError, Node
from coreplay.replay import path_for

PATIENCE = 30.0  # seconds that another process gets to end
LOOK = 0.1


@contextmanager
def lock_state(node: Node, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of the client's state; the system frees it when the process ends, however that happens."""
    place = _beside(node, ".lock")
    make_folder(place.parent, private=True)
    with place.open("ab") as file:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise BusyError(node) from None
                time.sleep(LOOK)
        yield


def state_id(node: Node) -> str:
    """Return the id of the client's state, made once."""
    place = _beside(node, ".id")
    if not place.exists():
        write_text(place, uuid.uuid4().hex)
    return place.read_text(encoding="utf-8")


def _beside(node: Node, suffix: str) -> Path:
    return path_for(node.state, node.owner).with_suffix(suffix)
