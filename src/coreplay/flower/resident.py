"""The resident worker: a process that stays beside a deployed node and answers its requests.

Flower starts a new process for every message, which would load torch, the data and the model each time: many seconds.
So the first message starts a resident worker, and the others only hand their request over, through a socket that
belongs to this user alone. It exits when its node exits, or after ten idle minutes; while it lives, no other process
works on the client's files. It keeps nothing that is not on the disk: without it everything works the same, only slower
(node config `resident=false`).
"""

import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from coreplay.errors import InputError, RefusedError
from coreplay.files import make_folder
from coreplay.flower.messages import from_bytes, to_bytes
from coreplay.flower.node import BusyError, Node
from coreplay.runtime.requests import Request

IDLE = 600.0  # seconds without a request after which it exits
STARTING = 120.0  # seconds that it gets to start
BUSY = 3  # exit code: another process has the client's files
LOG = "resident.log"


def ask(node: Node, request: bytes) -> bytes:
    """Let the resident worker of this node answer a request, as bytes; start one if there is none."""
    owner = os.getppid()  # lives as long as the node
    place = _place(node, owner)
    link = _connect(place)
    if link is None:
        make_folder(node.state, private=True)
        settings = json.dumps(asdict(node), default=str)
        command = [sys.executable, "-m", "coreplay.flower.resident", str(place), str(owner), settings]
        with (node.state / LOG).open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + STARTING
        while link is None:
            if process.poll() == BUSY:
                raise BusyError(node)
            if process.poll() is not None or time.monotonic() > until:
                raise RefusedError(f"its resident worker did not start: {LOG} in the node's state folder says more")
            time.sleep(0.05)
            link = _connect(place)
    with link:
        link.send_bytes(request)
        return link.recv_bytes()


def _place(node: Node, owner: int) -> Path:
    """Return the socket's place: in a folder that only this user can enter, with a short name."""
    folder = Path(tempfile.gettempdir()) / f"coreplay-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077 or folder.is_symlink():
        raise RefusedError(f"{str(folder)!r} is open to others: remove it")
    name = f"{node.folder.absolute()}\0{owner}"
    return folder / hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def _connect(place: Path) -> Connection | None:
    try:
        return Client(str(place))
    except (FileNotFoundError, ConnectionRefusedError):
        return None


def serve(place: Path, node: Node) -> None:
    """Answer requests, one after the other, until none has come for long."""
    place.unlink(missing_ok=True)
    with Listener(str(place)) as listener:
        from coreplay.flower.client import NodeClient  # takes seconds, which a message can already wait for

        while True:
            idle = threading.Timer(IDLE, _end, [place])
            idle.start()
            link = listener.accept()
            idle.cancel()
            with link, suppress(OSError, EOFError, InputError):  # the other process may have ended, or be no node
                request = from_bytes(link.recv_bytes())
                if isinstance(request, Request):
                    link.send_bytes(to_bytes(NodeClient(node, request.run).answer(request)))


def _end_with(owner: int, place: Path) -> None:
    """End this process with its owner, also while it is busy: nobody waits for its answer any more."""
    with suppress(ProcessLookupError):  # it is gone already
        select.select([os.pidfd_open(owner)], [], [])
    _end(place)


def _end(place: Path) -> None:
    """End this process at once: what is on the disk is always whole."""
    place.unlink(missing_ok=True)
    os._exit(0)


def main(place: Path, owner: int, node: Node) -> None:
    """Be the resident worker of a node, when no other process works on its client's files any more."""
    os.umask(0o077)  # buffers and secrets are this user's alone
    threading.Thread(target=_end_with, args=(owner, place), daemon=True).start()
    try:
        with node.lock():
            serve(place, node)
    except BusyError as error:
        print(error, file=sys.stderr)
        raise SystemExit(BUSY) from None


if __name__ == "__main__":
    given = json.loads(sys.argv[3])
    main(Path(sys.argv[1]), int(sys.argv[2]), Node(**given | {"state": Path(given["state"])}))
