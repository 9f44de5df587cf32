"""Who does the jobs of an engine on one machine: a client runtime, in this process or in a worker process.

A worker process lives as long as its pipe: when the engine is gone, killed or not, reading fails and it ends.
"""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.learning import FlatModel
from coreplay.plugins import Plugin, load_again
from coreplay.replay import Store
from coreplay.runtime.client import ClientRuntime
from coreplay.runtime.config import Config
from coreplay.runtime.engine import GroupSum
from coreplay.runtime.engines.importing import Key, import_all
from coreplay.runtime.requests import CHANGE, Reply, Request, TrainReply
from coreplay.tasks import Task

BUFFERS, SCRATCH = "buffers.sqlite", "scratch"  # in the run's folder


class SharedVector:
    """A vector in shared memory; who made it removes it, also if it is killed (by Python's tracker).

    Another process that it is sent to gets it as an array on the same memory.

    >>> import pickle
    >>> made = SharedVector(4, "float32")
    >>> seen = pickle.loads(pickle.dumps(made))
    >>> made.put(np.float32([0, 2.5, 0, 0]))
    >>> seen.tolist()
    [0.0, 2.5, 0.0, 0.0]
    >>> made.close()
    """

    def __init__(self, size: int, dtype: str) -> None:
        self._memory = SharedMemory(create=True, size=size * np.dtype(dtype).itemsize)
        self._latest: NDArray[Any] | None = None
        self.values: NDArray[Any] = np.ndarray(size, dtype, self._memory.buf)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._memory.name, self.values.size, self.values.dtype.str)

    def put(self, array: NDArray[Any]) -> None:
        """Copy an array into it, unless it is the one that was put there last."""
        if array is not self._latest:
            np.copyto(self.values, array)
            self._latest = array

    def close(self) -> None:
        """Remove it."""
        del self.values
        self._memory.close()
        self._memory.unlink()


def _attached(name: str, size: int, dtype: str) -> NDArray[Any]:
    return np.ndarray(size, dtype, _memory(name).buf)


@cache
def _memory(name: str) -> SharedMemory:
    return SharedMemory(name)


@dataclass(frozen=True)
class Setup:
    """What a worker process is started with; it sums changes of the model in `total`."""

    stream: FederatedStream
    task: Task
    total: Any  # a shared vector, and an array once it has arrived
    own: dict[Key, str]  # what the user registered: its module


@dataclass(frozen=True)
class Begin:
    """A run begins, in this folder."""

    config: Config
    folder: Path


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
class Failure:
    """A job failed: at which client, and how. `expected` marks wrong input, which a second try would not change."""

    client: str
    message: str
    trace: str
    expected: bool = False


class Host:
    """Does jobs, one request at a time, with one model instance on one thread; sums changes of the model in `total`."""

    def __init__(self, stream: FederatedStream, task: Task, total: NDArray[Any]) -> None:
        self._stream, self._task, self._total = stream, task, total
        self._flat = FlatModel(task.model(0))
        self._runtime: ClientRuntime | None = None
        self.client = ""  # whose request is being handled

    def close(self) -> None:
        """Close the store of the current run."""
        if self._runtime is not None:
            self._runtime.store.close()
            self._runtime = None

    def begin(self, job: Begin) -> None:
        """Handle requests of this run from now on."""
        self.close()
        about = (job.config, self._stream, self._task, self._flat)
        self._runtime = ClientRuntime(*about, Store.open(job.folder / BUFFERS), job.folder / SCRATCH)

    def do(self, job: Job) -> list[Reply] | GroupSum:
        """Handle the requests of a job; what they write to the store is written together at the end."""
        assert self._runtime is not None, "a run begins with Begin"
        self.client = ""
        replies: list[Reply] = []
        summed = GroupSum()
        with self._runtime.store.deferred():
            for self.client, request in job.requests:
                if job.max_weight is None:
                    _give_memory_back()  # a pool needs room of its own size
                    replies.append(self._runtime.handle(self.client, request))
                else:
                    reply = self._runtime.handle(self.client, request)
                    assert isinstance(reply, TrainReply), "only these are summed"
                    summed.add(reply, job.max_weight, {CHANGE: self._total})
        if job.max_weight is not None:
            return summed
        _give_memory_back()
        return replies


def _give_memory_back() -> None:
    """Return free memory to the system: batches and pools of many sizes leave holes in the heap that add up."""
    with suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: more of them add up numbers in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _thread_pools(len(sys.modules)).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=1)
def _thread_pools(modules: int) -> ThreadpoolController:
    """Return the control of all thread pools; finding them takes milliseconds, and imported modules may add some."""
    return ThreadpoolController()


def main(connection: Connection, plugins: tuple[Plugin, ...]) -> None:
    """Do jobs in a worker process until the engine is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    host: Any = None
    reply: Any
    with suppress(EOFError, OSError), one_thread():
        while True:
            data = connection.recv_bytes()
            try:
                load_again(plugins)  # which the first job may need, each once
                reply = None
                job = _unpacked(data)
                if isinstance(job, Setup):
                    host = Host(job.stream, job.task, job.total)
                    reply = import_all(job.own)
                elif isinstance(job, Begin):
                    host.begin(job)
                else:
                    reply = host.do(job)
                if isinstance(reply, GroupSum):
                    reply.sums.pop(CHANGE, None)  # it is in shared memory
            except Exception as error:
                name = host.client if host else ""
                reply = Failure(name, str(error), traceback.format_exc(), isinstance(error, InputError))
            connection.send(reply)


def _unpacked(data: bytes) -> Any:
    try:
        return ForkingPickler.loads(data)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"worker processes can't import the task: {error}; define its class in a module (a .py file, and not under "
            '`if __name__ == "__main__":`), or set engine.name = "serial"'
        ) from None
