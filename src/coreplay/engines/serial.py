"""The serial engine: every job in the calling process, one after the other. Nothing is started and nothing is imported.

So it works in a notebook, in a script without a guard and with a selector that is defined in a cell, and a debugger
sees everything. The results are those of worker processes to the bit.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from coreplay.data import FederatedStream
from coreplay.engines import worker as jobs
from coreplay.engines.machine import MachineEngine, WorkerError, last_client
from coreplay.errors import InputError
from coreplay.federated.engine import Watch
from coreplay.federated.flat import Vector
from coreplay.tasks import Task


class SerialEngine(MachineEngine):
    """Runs in the calling process.

    Parameters
    ----------
    stream : FederatedStream
        The data of all clients.
    task : Task
        What is learnt.
    start : vector
        The model that runs start from; only its size and type matter here.
    """

    def __init__(self, stream: FederatedStream, task: Task, start: Vector) -> None:
        super().__init__(stream, task)
        self.model, self._total = np.empty_like(start), np.empty_like(start)
        self.missing = set()
        self._worker = jobs.Worker(stream, task, self.model, self._total)

    def close(self) -> None:
        """Let go of the run's files."""
        self._worker.close()
        super().close()

    def _to_all(self, begun: jobs.Begin) -> None:
        self._worker.do(begun)

    def _each(self, work: Sequence[Any], watch: Watch) -> Iterator[tuple[int, Any, Vector]]:
        for number, job in enumerate(work):
            yield number, self._done(job, watch), self._total

    def _done(self, job: Any, watch: Watch) -> Any:
        for attempt in range(2):
            try:
                with _one_thread():
                    reply = self._worker.do(job)
            except InputError:
                raise
            except Exception as error:
                who = self._worker.client or last_client(job)
                if attempt:
                    raise WorkerError(f"client {who!r} failed twice: {error}") from error
                trace = traceback.format_exc()
                watch({"text": f"client {who!r} failed and is tried again: {error}", "trace": trace})
            else:
                watch({"clients": len(getattr(job, "clients", ())), "client": last_client(job)})
                return reply
        raise AssertionError("the second attempt returns or raises")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread, as worker processes do: more of them add up numbers in another order."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
