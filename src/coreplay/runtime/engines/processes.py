"""The engine `processes`: worker processes on this machine, one per core.

The global model lies in shared memory, and so does one sum per worker.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from numpy.typing import NDArray

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.plugins import loaded_plugins
from coreplay.runtime.engine import GroupSum
from coreplay.runtime.engines import host
from coreplay.runtime.engines.host import Begin, Failure, Job, Setup, SharedVector
from coreplay.runtime.engines.importing import UNGUARDED, check_main, known_here
from coreplay.runtime.engines.machine import MachineEngine, WorkerError
from coreplay.runtime.events import Observe, Problem
from coreplay.runtime.requests import CHANGE, Request
from coreplay.tasks import Task

NO_GUARD = (
    "worker processes import the program, which then starts a run of its own: put what the program does under "
    '`if __name__ == "__main__":`, or set engine.name = "serial" to run without worker processes'
)


class ProcessesEngine(MachineEngine):
    """Runs on worker processes, which must be able to import the task's class.

    Of `start`, the first model, only the size and type matter here. Without `workers` there is one per core.
    """

    def __init__(self, stream: FederatedStream, task: Task, start: NDArray[Any], workers: int | None = None) -> None:
        check_main()
        super().__init__(stream, task)
        _ = stream.ids  # computed once here instead of in every worker
        # not forked, from us or from a server: arrow and torch have threads, whose locks a fork copies held
        self._context = multiprocessing.get_context("spawn")
        self._size, self._dtype = len(start), start.dtype.str
        self._shared: dict[tuple[str, int, str], SharedVector] = {}
        self._workers: list[_Process] = []
        try:
            for place in range(workers or cores()):
                self._start(place)
            self.unknown_there = {key for process in self._workers for key in process.check()}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers and free the shared memory."""
        with _uninterrupted():
            for process in self._workers:
                process.close()
            self._workers = []
            super().close()
            for vector in self._shared.values():
                vector.close()
            self._shared = {}

    def _to_all(self, begun: Begin) -> None:
        for process in self._workers:
            process.send(begun)
            process.check()

    def _each(self, jobs: Sequence[Job], observe: Observe) -> Iterator[tuple[int, Any]]:
        """Do all jobs, each on the next free worker; a worker that dies is started again."""
        posted = [replace(job, requests=tuple((c, self._post(r)) for c, r in job.requests)) for job in jobs]
        waiting = list(range(len(jobs)))[::-1]
        busy: dict[int, int] = {}
        tried: set[int] = set()
        while waiting or busy:
            for place, process in enumerate(self._workers):
                if waiting and place not in busy:
                    busy[place] = waiting.pop()
                    process.send(posted[busy[place]])
            ready = wait([self._workers[place].connection for place in busy])
            for place in [place for place in busy if self._workers[place].connection in ready]:
                number = busy.pop(place)
                process = self._workers[place]
                reply = process.receive()
                if not isinstance(reply, Failure):
                    yield number, reply
                    continue
                if reply.expected:
                    raise InputError(reply.message)
                who = reply.client or jobs[number].last_client
                if number in tried:
                    raise WorkerError(f"client {who!r} failed twice: {reply.message}\n{reply.trace}")
                tried.add(number)
                observe(Problem(f"client {who!r} failed and is tried again: {reply.message}", reply.trace))
                if not process.alive():
                    process.close()
                    self._start(place)
                    self._workers[place].check()
                    self._workers[place].send(self._begun)
                    self._workers[place].check()
                waiting.append(number)

    def _post(self, request: Request) -> Request:
        """Return the request with its arrays in shared memory."""
        arrays: dict[str, Any] = {}
        for name, array in request.arrays.items():
            key = (name, array.size, array.dtype.str)
            if key not in self._shared:
                with _uninterrupted():
                    self._shared[key] = SharedVector(array.size, array.dtype.str)
            self._shared[key].put(array)
            arrays[name] = self._shared[key]
        return replace(request, arrays=arrays)

    def _start(self, place: int) -> None:
        """Start the worker at this place; `close` knows of it before anything can interrupt."""
        with _uninterrupted():
            process = _Process(self._context, SharedVector(self._size, self._dtype))
            self._workers[place : place + 1] = [process]
        process.send(Setup(self.stream, self.task, process.total, known_here()))


class _Process:
    """A worker as the engine sees it."""

    def __init__(self, context: Any, total: SharedVector) -> None:
        self.total = total
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=host.main, args=(theirs, loaded_plugins()), daemon=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: ctrl-C is for this process alone
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()

    def alive(self) -> bool:
        return bool(self._process.is_alive())

    def send(self, message: Any) -> None:
        with suppress(OSError):  # it is dead: `receive` says so
            self.connection.send(message)

    def receive(self) -> Any:
        """Return the reply; a `Failure` if the process died."""
        try:
            reply = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            if code == UNGUARDED:
                return Failure("", NO_GUARD, "", expected=True)
            how = f"exit code {code}); what it printed says why"
            if code is not None and code < 0:
                how = f"killed by signal {-code}); is memory short?"
            return Failure("", f"its worker process died ({how}", "")
        if isinstance(reply, GroupSum):
            reply.sums[CHANGE] = self.total.values  # which the worker left there
        return reply

    def check(self) -> Any:
        """Return the reply, which must be no failure."""
        reply = self.receive()
        if isinstance(reply, Failure):
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
