"""The serial engine: every job in the calling process, one after the other. Nothing is started and nothing is imported.

So it works in a notebook, in a script without a guard and with a selector that is defined in a cell, and a debugger
sees everything. The results are those of worker processes to the bit.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.runtime.engines.host import Begin, Host, Job
from coreplay.runtime.engines.machine import MachineEngine, WorkerError
from coreplay.runtime.events import Answered, Observe, Problem
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

    def __init__(self, stream: FederatedStream, task: Task, start: NDArray[Any]) -> None:
        super().__init__(stream, task)
        self.unknown_there = set()
        self._host = Host(stream, task, np.empty_like(start))

    def close(self) -> None:
        """Close the run's files."""
        self._host.close()
        super().close()

    def _to_all(self, begun: Begin) -> None:
        self._host.begin(begun)

    def _each(self, jobs: Sequence[Job], observe: Observe) -> Iterator[tuple[int, Any]]:
        for number, job in enumerate(jobs):
            yield number, self._done(job, observe)

    def _done(self, job: Job, observe: Observe) -> Any:
        for attempt in range(2):
            try:
                with _one_thread():
                    reply = self._host.do(job)
            except InputError:
                raise
            except Exception as error:
                who = self._host.client or job.last_client
                if attempt:
                    raise WorkerError(f"client {who!r} failed twice: {error}") from error
                observe(Problem(f"client {who!r} failed and is tried again: {error}", traceback.format_exc()))
            else:
                observe(Answered(job.last_client, len(job.requests) if job.last_client else 0))
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
