"""The local engine: worker processes on this machine, one a core.

The global model lies in shared memory, and so does one sum a worker. The clients of a round are dealt by size to a
fixed number of groups; a group is trained and summed by one worker, and the groups' sums are added in their order. So
the result is the same to the bit whatever the number of workers, and memory does not grow with the number of clients.
"""

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from coreplay.coordination import Contribution
from coreplay.coordination.messages import NEVER
from coreplay.coordination.secure.exchange import secure_sum
from coreplay.data import FederatedStream
from coreplay.engines import worker as jobs
from coreplay.engines.importing import UNGUARDED, check_main, known_here
from coreplay.engines.shared import SharedVector
from coreplay.engines.sums import Weights, deal
from coreplay.errors import InputError
from coreplay.federated.config import Config
from coreplay.federated.engine import EngineError, Evaluation, Holdings, SecureTotal, Update, Watch
from coreplay.federated.flat import Vector
from coreplay.federated.pools import holdings_of
from coreplay.federated.site import run_name
from coreplay.replay import Buffer, Store
from coreplay.tasks import Tally, Task

BUFFERS = "buffers.sqlite"  # in the run's folder
MEASURED_AT_ONCE = 1024  # test samples a job
CHOSEN_AT_ONCE = 8  # clients a job of a selection
NO_GUARD = (
    "worker processes import the program, which then starts a run of its own: put what the program does under "
    '`if __name__ == "__main__":`'
)


class WorkerError(EngineError):
    """A client failed twice; names it, with the traceback of the worker."""


class LocalEngine:
    """Runs on worker processes that may serve several runs, one after the other, of the same stream and task.

    Parameters
    ----------
    stream : FederatedStream
        The data of all clients.
    task : Task
        What is learnt; its class must be in a module that worker processes can import.
    start : vector
        The model that runs start from; only its size and type matter here.
    workers : int, optional
        Worker processes; by default one per core that this process may use.
    """

    def __init__(self, stream: FederatedStream, task: Task, start: Vector, workers: int | None = None) -> None:
        check_main()
        self.stream, self.task = stream, task
        stream.ids  # noqa: B018  computed once here instead of in every worker
        self._sizes: dict[str, int] = {}
        self._states: dict[str, bytes] = {}
        self._begun: jobs.Begin | None = None
        self._store: Store | None = None
        self._scratch: Path | None = None
        # not forked, from us or from a server: arrow and torch have threads, whose locks a fork copies held
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Process] = []
        try:
            with _uninterrupted():
                self._model = SharedVector(len(start), start.dtype.name)
            for place in range(workers or cores()):
                self._start(place)
            self.missing = {key for process in self._workers for key in process.check()}  # registered here, not there
        except BaseException:
            if hasattr(self, "_model"):
                self.close()
            raise

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and free the shared memory."""
        with _uninterrupted():
            for process in self._workers:
                process.close()
            self._workers = []
            if self._store is not None:
                self._store.close()
                self._store = None
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
            self._model.close()

    def begin(self, config: Config, folder: Path) -> None:
        """Serve this run from now on."""
        if self._store is not None:
            self._store.close()
        self._config, self._groups = config, config.engine.groups
        self._weights = Weights(config.federated.max_weight_ratio)
        self._store = Store.open(folder / BUFFERS)
        self._scratch = folder / "scratch"
        self._begun = jobs.Begin(config, folder / BUFFERS, self._scratch)
        for process in self._workers:
            process.ask(self._begun)

    def rewind(self, period: int) -> None:
        """Go back to the buffers of the end of `period`."""
        assert self._store is not None, "begin comes first"
        self._store.rewind(period)
        known = self._store.load_many(self._store.clients())
        self._sizes = {client: len(buffer.items) for client, buffer in known.items()}

    def sizes(self) -> dict[str, int]:
        """Return how many samples each client's buffer holds."""
        return dict(self._sizes)

    def holdings(self) -> Holdings:
        """Count what all buffers hold: in a simulation all of them are here."""
        assert self._store is not None, "begin comes first"
        return holdings_of(self._store.load_many(self._store.clients()).values(), self.stream.periods)

    def fingerprint(self) -> str:
        """Return a text that changes whenever a buffer does."""
        assert self._store is not None, "begin comes first"
        return self._store.fingerprint()

    def train(self, period: int, round: int, clients: Sequence[str], values: Vector, watch: Watch) -> Update:
        """Train the clients group by group and add up in the order of the groups."""
        self._model.values[:] = values
        counts = self._counts(clients, period)
        groups, largest = deal(counts, self._groups), self._weights.largest(counts)
        for text in self._weights.warnings(counts):
            watch({"text": text})
        change = np.zeros_like(values)
        early: dict[int, Vector] = {}
        told: dict[int, list[Any]] = {}
        following = 0
        work = [jobs.Train(period, round, group, largest) for group in groups]
        for number, reply, total in self._each(work, watch):
            told[number] = reply
            early[number] = total if number == following else total.copy()
            while following in early:
                change += early.pop(following)
                following += 1
        trained = [each for number in sorted(told) for each in told[number]]
        loss = sum((each.loss for each in trained), Tally())
        return Update(change, sum(min(each.samples, largest) for each in trained), loss)

    def _counts(self, clients: Sequence[str], period: int) -> dict[str, int]:
        """Return how many samples each client trains on."""
        numbers = {client: k for k, client in enumerate(self.stream.clients)}
        counts = self.stream.counts("train")[:, period]
        return {client: int(counts[numbers[client]]) + self._sizes.get(client, 0) for client in clients}

    def evaluate(self, values: Vector, watch: Watch) -> Evaluation:
        """Measure the test set of every period, in parts."""
        self._model.values[:] = values
        sizes = self.stream.counts("test").sum(axis=0).tolist()
        work = [
            jobs.Measure(period, at, min(at + MEASURED_AT_ONCE, size))
            for period, size in enumerate(sizes)
            for at in range(0, size, MEASURED_AT_ONCE)
        ]
        found = {number: reply for number, reply, _ in self._each(work, watch)}
        sums = [Tally()] * self.stream.periods
        for number, job in enumerate(work):
            sums[job.period] = sums[job.period] + found[number]
        return Evaluation(sums)

    def choose(self, period: int, clients: Sequence[str], values: Vector, watch: Watch) -> None:
        """Let each client choose alone; all buffers change in one transaction."""
        self._model.values[:] = values
        work = [jobs.Choose(period, part) for part in _parts(clients)]
        self._keep([buffer for _, reply, _ in self._each(work, watch) for buffer in reply])

    def contribute(
        self, period: int, clients: Sequence[str], values: Vector, broadcast: bytes | None, watch: Watch
    ) -> Iterator[bytes]:
        """Let clients answer a broadcast; the workers see to several clients at once."""
        if broadcast is None:
            self._states = {}
            self._model.values[:] = values
        work = [jobs.Contribute(period, part, self._states_of(part), broadcast) for part in _parts(clients)]
        for number, reply, _ in self._each(work, watch):
            for client, (contribution, state) in zip(work[number].clients, reply, strict=True):
                self._states[client] = state
                if contribution is not None:
                    yield contribution

    def contribute_securely(
        self,
        period: int,
        round: int,
        bounds: Mapping[str, float],
        bases: Mapping[str, int],
        values: Vector,
        broadcast: bytes | None,
        watch: Watch,
    ) -> SecureTotal | None:
        """Carry out the secure sum in this process: what a server would learn is the same."""
        sent = [Contribution.from_bytes(d) for d in self.contribute(period, list(bounds), values, broadcast, watch)]
        able = {c.client: c for c in sent if round == 0 or c.basis != NEVER}
        if len(able) < 2:  # a sum of one hides nothing
            return None
        vectors = {client: c.vector for client, c in able.items()}
        found = secure_sum(vectors, bounds, run=run_name(self._config), period=period, round=round)
        return SecureTotal({k: able[k].basis for k in found.survivors}, found.total, found.bytes_up, found.bytes_down)

    def settle(
        self, period: int, clients: Sequence[str], values: Vector, broadcast: bytes | None, watch: Watch
    ) -> None:
        """Let each client keep what it chose; all buffers change in one transaction."""
        self._model.values[:] = values
        taking = [client for client in clients if client in self._states]
        alone = [client for client in clients if client not in self._states]
        work = [jobs.Settle(period, part, self._states_of(part), broadcast) for part in _parts(taking)]
        work += [jobs.Settle(period, part, self._states_of(part), None) for part in _parts(alone)]
        self._keep([buffer for _, reply, _ in self._each(work, watch) for buffer in reply])
        self._states = {}

    def _states_of(self, clients: Sequence[str]) -> tuple[bytes | None, ...]:
        return tuple(self._states.get(client) for client in clients)

    def _keep(self, buffers: list[Buffer]) -> None:
        assert self._store is not None, "begin comes first"
        self._store.replace_all(sorted(buffers, key=lambda buffer: buffer.client))
        self._sizes |= {buffer.client: len(buffer.items) for buffer in buffers}
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _each(self, work: Sequence[Any], watch: Watch) -> Iterator[tuple[int, Any, Vector]]:
        """Do all jobs, each on the next free worker; give (number, reply, the worker's vector) as they come.

        A worker that dies is started anew; a client that fails is tried once more, then given up with its traceback.
        """
        waiting = list(range(len(work)))[::-1]
        busy: dict[int, int] = {}
        tried: set[int] = set()
        while waiting or busy:
            for place, process in enumerate(self._workers):
                if waiting and place not in busy:
                    busy[place] = waiting.pop()
                    process.send(work[busy[place]])
            ready = wait([self._workers[place].connection for place in busy])
            for place in [place for place in busy if self._workers[place].connection in ready]:
                number = busy.pop(place)
                process = self._workers[place]
                reply = process.receive()
                if not isinstance(reply, jobs.Failure):
                    watch({"clients": len(getattr(work[number], "clients", ())), "client": _last(work[number])})
                    yield number, reply, process.total.values
                    continue
                if reply.expected:
                    raise InputError(reply.message)
                who = reply.client or _last(work[number])
                if number in tried:
                    raise WorkerError(f"client {who!r} failed twice: {reply.message}\n{reply.trace}")
                tried.add(number)
                watch({"text": f"client {who!r} failed and is tried again: {reply.message}", "trace": reply.trace})
                if not process.alive():
                    process.close()
                    self._start(place)
                    self._workers[place].check()
                    if self._begun is not None:
                        self._workers[place].ask(self._begun)
                waiting.append(number)

    def _start(self, place: int) -> None:
        """Start the worker at this place; `close` knows of it before anything can interrupt."""
        size, dtype = len(self._model.values), self._model.values.dtype.name
        with _uninterrupted():
            process = _Process(self._context, SharedVector(size, dtype))
            self._workers[place : place + 1] = [process]
        names = (self._model.name, process.total.name)
        process.send(jobs.Setup(self.stream, self.task, size, dtype, *names, known_here()))


class _Process:
    """A worker as the engine sees it."""

    def __init__(self, context: Any, total: SharedVector) -> None:
        self.total = total
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=jobs.main, args=(theirs,), daemon=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: ctrl-C is for this process alone
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()

    def alive(self) -> bool:
        return bool(self._process.is_alive())

    def send(self, message: Any) -> None:
        with suppress(BrokenPipeError, OSError):  # it is dead: `receive` says so
            self.connection.send(message)

    def receive(self) -> Any:
        """Return the reply; a `Failure` if the process died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            if code == UNGUARDED:
                return jobs.Failure("", NO_GUARD, "", expected=True)
            how = f"exit code {code}); what it printed says why"
            if code is not None and code < 0:
                how = f"killed by signal {-code}); is memory short?"
            return jobs.Failure("", f"its worker process died ({how}", "")

    def ask(self, message: Any) -> None:
        """Send a message and wait for its reply, which must be no failure."""
        self.send(message)
        self.check()

    def check(self) -> Any:
        """Return the reply, which must be no failure."""
        reply = self.receive()
        if isinstance(reply, jobs.Failure):
            if reply.expected:
                raise InputError(reply.message)
            raise WorkerError(f"a worker process could not begin: {reply.message}\n{reply.trace}")
        return reply

    def close(self) -> None:
        self.connection.close()
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.total.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put ctrl-C off to the end of the block, so that no process and no shared memory is left behind."""
    if threading.current_thread() is not threading.main_thread():  # it is never interrupted
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        if came:
            signal.raise_signal(signal.SIGINT)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _parts(clients: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(clients[at : at + CHOSEN_AT_ONCE]) for at in range(0, len(clients), CHOSEN_AT_ONCE)]


def _last(job: Any) -> str:
    clients = getattr(job, "clients", ())
    return str(clients[-1]) if clients else ""
