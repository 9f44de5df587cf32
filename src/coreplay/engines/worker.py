"""A worker: one model instance, one thread, one job at a time; and the process around it, of the engine `processes`.

The process lives as long as its pipe: when the engine is gone, killed or not, reading fails and the worker ends.
"""

import ctypes
import os
import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from coreplay.coordination import Broadcast
from coreplay.data import FederatedStream
from coreplay.engines.importing import Key, import_all
from coreplay.engines.shared import SharedVector
from coreplay.engines.sums import add_weighted
from coreplay.errors import InputError
from coreplay.federated.config import Config
from coreplay.federated.flat import FlatModel, Vector
from coreplay.federated.site import Answer, Site
from coreplay.federated.training import Trained
from coreplay.plugins import Plugin, load_again
from coreplay.replay import Buffer, Store
from coreplay.tasks import Task, WeightedSum


@dataclass(frozen=True)
class Setup:
    """What a worker is started with."""

    stream: FederatedStream
    task: Task
    size: int
    dtype: str
    model: str  # names of shared memory: the global model, and this worker's sum
    total: str
    own: dict[Key, str]  # what the user registered: its module


@dataclass(frozen=True)
class Begin:
    """A run begins: its configuration, its buffers and its scratch folder."""

    config: Config
    buffers: Path
    scratch: Path


@dataclass(frozen=True)
class Train:
    """Train these clients one after the other and leave Σ weight · change in the worker's vector."""

    period: int
    round: int
    clients: tuple[str, ...]
    largest: int  # weight of a client


@dataclass(frozen=True)
class Measure:
    """Measure the model on rows `start` to `stop` of a period's test set."""

    period: int
    start: int
    stop: int


@dataclass(frozen=True)
class Choose:
    """Let these clients choose alone."""

    period: int
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Contribute:
    """Let these clients answer a broadcast; with what each must be reminded of."""

    period: int
    clients: tuple[str, ...]
    states: tuple[bytes | None, ...]
    broadcast: bytes | None


@dataclass(frozen=True)
class Settle:
    """Let these clients finish."""

    period: int
    clients: tuple[str, ...]
    states: tuple[bytes | None, ...]
    broadcast: bytes | None


Job = Begin | Train | Measure | Choose | Contribute | Settle


@dataclass(frozen=True)
class Failure:
    """A job failed: at which client, and how. `expected` marks wrong input, which a second try would not mend."""

    client: str
    message: str
    trace: str
    expected: bool = False


class Worker:
    """Does jobs; each method returns what goes back to the engine."""

    def __init__(self, stream: FederatedStream, task: Task, model: Vector, total: Vector) -> None:
        self._stream, self._task = stream, task
        self._model, self._total = model, total
        self._flat = FlatModel(task.model(0))
        self._site: Site | None = None
        self.client = ""  # whom the worker is busy with

    def close(self) -> None:
        """Close the store of the current run."""
        if self._site is not None:
            self._site.store.close()
            self._site = None

    @property
    def site(self) -> Site:
        """The client side of the current run."""
        assert self._site is not None, "a run begins with Begin"
        return self._site

    def do(self, job: Job) -> Any:
        """Do a job."""
        self.client = ""
        match job:
            case Begin():
                return self._begin(job)
            case Train():
                return self._train(job)  # the next round wants the same memory again
            case Measure():
                found: Any = self._measure(job)
            case Choose():
                found = [self._apart(c).choose_alone(c, job.period, self._model) for c in job.clients]
            case Contribute():
                found = self._contribute(job)
            case Settle():
                found = self._settle(job)
        _give_memory_back()
        return found

    def _at(self, client: str) -> Site:
        self.client = client
        return self.site

    def _apart(self, client: str) -> Site:
        """Return the site for a client's pool, which needs room of its own size: the last one's is given back first."""
        _give_memory_back()
        return self._at(client)

    def _begin(self, job: Begin) -> None:
        self.close()
        store = Store.open(job.buffers)
        self._site = Site(job.config, self._stream, self._task, self._flat, store, job.scratch)

    def _train(self, job: Train) -> list[Trained]:
        import torch

        start, total = torch.from_numpy(self._model), torch.from_numpy(self._total)
        told = []
        for k, client in enumerate(job.clients):
            trained = self._at(client).train(client, job.period, job.round, self._model)
            weight = min(trained.samples, job.largest)
            add_weighted(total, self._flat.values.sub_(start), weight, first=k == 0)
            told.append(trained)
        return told

    def _measure(self, job: Measure) -> WeightedSum:
        samples = self._stream.of_period(job.period, "test")[slice(job.start, job.stop)]
        return self.site.tally(samples, self._model)

    def _contribute(self, job: Contribute) -> list[tuple[bytes | None, bytes]]:
        broadcast = None if job.broadcast is None else Broadcast.from_bytes(job.broadcast)
        answers: list[Answer] = [
            self._apart(client).coordinate(client, job.period, self._model, state, broadcast)
            for client, state in zip(job.clients, job.states, strict=True)
        ]
        return [(None if a.contribution is None else a.contribution.to_bytes(), a.state) for a in answers]

    def _settle(self, job: Settle) -> list[Buffer]:
        broadcast = None if job.broadcast is None else Broadcast.from_bytes(job.broadcast)
        return [
            self._apart(client).settle(client, job.period, self._model, state, broadcast)
            for client, state in zip(job.clients, job.states, strict=True)
        ]


def _give_memory_back() -> None:
    """Let the system have what is free: batches and pools of many sizes leave holes in the heap that add up."""
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
    """Load the plugins, which the first job may need, and serve jobs until the engine is gone."""
    import torch
    from threadpoolctl import threadpool_limits

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is the engine's affair
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    with threadpool_limits(1):
        worker: Worker | None = None
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
                    shared = [SharedVector(job.size, job.dtype, name) for name in (job.model, job.total)]
                    worker = Worker(job.stream, job.task, *(vector.values for vector in shared))
                    reply = import_all(job.own)
                else:
                    assert worker is not None, "the first message is the setup"
                    reply = worker.do(job)
            except Exception as error:
                name = worker.client if worker else ""
                reply = Failure(name, str(error), traceback.format_exc(), isinstance(error, InputError))
            try:
                connection.send(reply)
            except (BrokenPipeError, OSError):
                return
