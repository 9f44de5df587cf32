"""Who does the jobs of an engine on one machine: a client runtime, in this process or in a worker process.

A worker process lives as long as its pipe: when the engine is gone, killed or not, reading fails and it ends.
"""

import ctypes
import os
import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.learning import FlatModel
from coreplay.plugins import Plugin, load_again
from coreplay.replay import Store
from coreplay.runtime.client import ClientRuntime
from coreplay.runtime.config import Config
from coreplay.runtime.engine import GroupSum, tensor
from coreplay.runtime.engines.importing import Key, import_all
from coreplay.runtime.engines.shared_memory import SharedVector
from coreplay.runtime.requests import CHANGE, Reply, Request, TrainReply
from coreplay.tasks import Task


@dataclass(frozen=True)
class Setup:
    """What a worker process is started with."""

    stream: FederatedStream
    task: Task
    size: int
    dtype: str
    total: str  # name of the shared memory that changes of the model are summed in
    own: dict[Key, str]  # what the user registered: its module


@dataclass(frozen=True)
class Begin:
    """A run begins: its configuration, its store and its scratch folder."""

    config: Config
    buffers: Path
    scratch: Path


@dataclass(frozen=True)
class Job:
    """Requests to handle in a row; with a `max_weight`, their replies are summed."""

    requests: tuple[tuple[str, Request], ...]
    max_weight: int | None = None

    @property
    def last_client(self) -> str:
        """The client whose request comes last."""
        return self.requests[-1][0] if self.requests else ""


@dataclass(frozen=True)
class Shared:
    """Stands for an array in shared memory."""

    name: str
    size: int
    dtype: str


@dataclass(frozen=True)
class Failure:
    """A job failed: at which client, and how. `expected` marks wrong input, which a second try would not change."""

    client: str
    message: str
    trace: str
    expected: bool = False


class Host:
    """Does jobs, one request at a time, with one model instance on one thread."""

    def __init__(self, stream: FederatedStream, task: Task, total: NDArray[Any]) -> None:
        self._stream, self._task = stream, task
        self._total: Tensor = tensor(total)
        self._flat = FlatModel(task.model(0))
        self._runtime: ClientRuntime | None = None
        self._vectors: dict[str, SharedVector] = {}
        self.client = ""  # whose request is being handled

    def close(self) -> None:
        """Close the store of the current run."""
        if self._runtime is not None:
            self._runtime.store.close()
            self._runtime = None

    def begin(self, job: Begin) -> None:
        """Handle requests of this run from now on."""
        self.close()
        store = Store.open(job.buffers)
        self._runtime = ClientRuntime(job.config, self._stream, self._task, self._flat, store, job.scratch)

    def do(self, job: Job) -> list[Reply] | GroupSum:
        """Handle the requests of a job; what they write to the store is written together at the end."""
        assert self._runtime is not None, "a run begins with Begin"
        self.client = ""
        replies: list[Reply] = []
        summed = GroupSum()
        with self._runtime.store.deferred():
            for client, request in job.requests:
                if job.max_weight is None:
                    _give_memory_back()  # a pool needs room of its own size
                self.client = client
                reply = self._runtime.handle(client, self._resolved(request))
                if job.max_weight is None:
                    replies.append(reply)
                else:
                    assert isinstance(reply, TrainReply), "only these are summed"
                    summed.add(reply, job.max_weight, {CHANGE: self._total})
        if job.max_weight is not None:
            return summed
        _give_memory_back()
        return replies

    def _resolved(self, request: Request) -> Request:
        """Return the request with its arrays in place of what stands for them."""
        return replace(request, arrays={name: self._vector(name, given) for name, given in request.arrays.items()})

    def _vector(self, name: str, given: Any) -> NDArray[Any]:
        if isinstance(given, np.ndarray):
            return given
        known = self._vectors.get(name)
        if known is None or known.name != given.name:
            if known is not None:
                known.close()
            known = self._vectors[name] = SharedVector(given.size, given.dtype, given.name)
        return known.values


def _give_memory_back() -> None:
    """Return free memory to the system: batches and pools of many sizes leave holes in the heap that add up."""
    with suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def _unpacked(data: bytes) -> Any:
    try:
        return ForkingPickler.loads(data)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"worker processes can't import the task: {error}; define its class in a module (a .py file, and not under "
            '`if __name__ == "__main__":`), or set engine.name = "serial"'
        ) from None


def main(connection: Connection, plugins: tuple[Plugin, ...]) -> None:
    """Load the plugins, which the first job may need, and do jobs until the engine is gone."""
    import torch
    from threadpoolctl import threadpool_limits

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    with threadpool_limits(1):
        host: Host | None = None
        reply: Any
        wrong: InputError | None = None
        try:
            load_again(plugins)
        except InputError as error:  # the engine hears of it when it sends the first job
            wrong = error
        while True:
            try:
                data = connection.recv_bytes()
            except (EOFError, OSError):
                return
            try:
                if wrong is not None:
                    raise wrong
                job = _unpacked(data)
                if isinstance(job, Setup):
                    total = SharedVector(job.size, job.dtype, job.total)
                    host = Host(job.stream, job.task, total.values)
                    reply = import_all(job.own)
                else:
                    assert host is not None, "the first message is the setup"
                    if isinstance(job, Begin):
                        host.begin(job)
                        reply = None
                    else:
                        reply = _portable(host.do(job))
            except Exception as error:
                name = host.client if host else ""
                reply = Failure(name, str(error), traceback.format_exc(), isinstance(error, InputError))
            try:
                connection.send(reply)
            except (BrokenPipeError, OSError):
                return


def _portable(reply: Any) -> Any:
    """Return a reply without the change of the model, which is in shared memory, and other sums as plain arrays."""
    if not isinstance(reply, GroupSum):
        return reply
    plain: Any = {name: vector.numpy() for name, vector in reply.sums.items() if name != CHANGE}
    return replace(reply, sums=plain)
