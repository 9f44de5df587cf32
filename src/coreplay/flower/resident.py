"""The resident worker: a process that stays beside a deployed node and answers its requests.

Flower starts a new process for every message, which would load torch, the data and the model each time: many seconds.
So the first message starts a resident worker, and the others only hand their request over, through a socket that
belongs to this user alone. It exits when its node exits, or after ten idle minutes; while it lives, no other process
works on the client's files. It keeps nothing that is not on the disk: without it everything works the same, only slower
(node config `resident=false`).
"""

import hashlib
import json
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from coreplay.errors import InputError, RefusedError
from coreplay.flower.messages import from_bytes, to_bytes
from coreplay.flower.node import BusyError, Node
from coreplay.runtime.requests import Failed, Reply, Request

IDLE = 600.0  # seconds without a request after which it exits
STARTING = 120.0  # seconds that it gets to start
CHECK_EVERY = 0.5  # seconds between two checks whether the node is still there
BUSY = 3  # exit code: another process has the client's files
LENGTH = struct.Struct("<Q")
LONGEST = 2**34
LOG = "resident.log"


def ask(node: Node, request: bytes) -> bytes:
    """Let the resident worker of this node answer a request, as bytes; start one if there is none."""
    owner = os.getppid()  # lives as long as the node
    place = _place(node, owner)
    link = _connect(place)
    if link is None:
        node.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(node).items()}
        with (node.state / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "coreplay.flower.resident", str(place), str(owner), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + STARTING
        while link is None:
            if process.poll() == BUSY:
                raise BusyError(node)
            if process.poll() is not None or time.monotonic() > until:
                raise RefusedError(f"its resident worker did not start: {LOG} in the node's state folder says more")
            time.sleep(0.05)
            link = _connect(place)
    with link:
        _send(link, request)
        return bytes(_receive(link))


def respond(node: Node, request: Request) -> Reply:
    """Answer a request in this process; the reply to one that fails has neither a traceback nor any data in it."""
    import torch
    from threadpoolctl import threadpool_limits

    from coreplay.flower.client import NodeClient

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        torch.set_num_threads(node.threads)
        with threadpool_limits(node.threads):
            reply = NodeClient(node, request.run).answer(request)
        if not _is_finite(list(reply.small_fields().values())):
            raise RefusedError("its metrics are NaN or infinite")
        return reply
    except Exception as error:
        logging.getLogger(__name__).exception("request %r failed", request.kind)
        return Failed(error=reason(error)).answering(request, "")


def _is_finite(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def reason(error: BaseException) -> str:
    """Return what the server may read of an error: the text of any other than ours may quote the client's data."""
    return str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}; the log of its node says more"


def respond_locked(node: Node, request: Request) -> Reply:
    """Answer a request in this process while no other works on the client's files."""
    from coreplay.flower.state_lock import lock_state

    with lock_state(node):
        return respond(node, request)


def serve(place: Path, node: Node) -> None:
    """Answer requests until nothing comes any more."""
    with socket.socket(socket.AF_UNIX) as listener:
        place.unlink(missing_ok=True)
        listener.bind(str(place))
        listener.listen()
        listener.settimeout(CHECK_EVERY)
        latest = time.monotonic()
        try:
            while time.monotonic() - latest < IDLE:
                try:
                    link, _ = listener.accept()
                except TimeoutError:
                    continue
                with link, suppress(OSError, EOFError, InputError):  # the other process may have ended, or be no node
                    link.settimeout(None)
                    request = from_bytes(_receive(link))
                    if isinstance(request, Request):
                        _send(link, to_bytes(respond(node, request)))
                latest = time.monotonic()
        finally:
            place.unlink(missing_ok=True)


def _end_with(owner: int, place: Path) -> None:
    """End this process when its owner is gone: nobody waits for its answer, and what is on the disk is always whole."""
    while _alive(owner):
        time.sleep(CHECK_EVERY)
    place.unlink(missing_ok=True)
    os._exit(0)


def _place(node: Node, owner: int) -> Path:
    """Return the socket's place: in a folder that only this user can enter, with a short name."""
    folder = Path(tempfile.gettempdir()) / f"coreplay-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077 or folder.is_symlink():
        raise RefusedError(f"{str(folder)!r} is open to others: remove it")
    name = f"{node.state.absolute()}\0{node.client}\0{node.partition}\0{owner}"
    return folder / hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def _connect(place: Path) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(str(place))
    except (FileNotFoundError, ConnectionRefusedError):
        link.close()
        return None
    return link


def _send(link: socket.socket, data: bytes) -> None:
    link.sendall(LENGTH.pack(len(data)))
    link.sendall(data)


def _receive(link: socket.socket) -> bytearray:
    (length,) = LENGTH.unpack(_exactly(link, LENGTH.size))
    if length > LONGEST:
        raise InputError(f"a message of {length} bytes is too long")
    return _exactly(link, length)


def _exactly(link: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, at = memoryview(data), 0
    while at < length:
        count = link.recv_into(view[at:])
        if not count:
            raise EOFError("the other process has ended")
        at += count
    return data


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def main(place: Path, owner: int, node: Node) -> None:
    """Be the resident worker of a node, when no other process works on its client's files any more."""
    from coreplay.flower.state_lock import lock_state

    os.umask(0o077)  # buffers and secrets are this user's alone
    threading.Thread(target=_end_with, args=(owner, place), daemon=True).start()
    try:
        with lock_state(node):
            serve(place, node)
    except BusyError as error:
        print(error, file=sys.stderr)
        raise SystemExit(BUSY) from None


if __name__ == "__main__":
    given = json.loads(sys.argv[3])
    main(Path(sys.argv[1]), int(sys.argv[2]), Node(**given | {"state": Path(given["state"])}))
