"""The serial engine: every job in the calling process, one after the other. Nothing is started and nothing is imported.

So it works in a notebook, in a script without a guard and with a selector that is defined in a cell, and a debugger
sees everything. The results are those of worker processes to the bit.
"""

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.runtime.engines.host import Begin, Host, Job, one_thread
from coreplay.runtime.engines.machine import MachineEngine, WorkerError
from coreplay.runtime.events import Observe, Problem
from coreplay.tasks import Task


class SerialEngine(MachineEngine):
    """Runs in the calling process; of `start`, the first model, only the size and type matter here."""

    def __init__(self, stream: FederatedStream, task: Task, start: NDArray[Any]) -> None:
        super().__init__(stream, task)
        self._host = Host(stream, task, np.empty_like(start))

    def close(self) -> None:
        """Close the run's files."""
        self._host.close()
        super().close()

    def _to_all(self, begun: Begin) -> None:
        self._host.begin(begun)

    def _each(self, jobs: Sequence[Job], observe: Observe) -> Iterator[tuple[int, Any]]:
        for number, job in enumerate(jobs):
            try:
                found = self._done(job)
            except InputError:
                raise
            except Exception as error:
                text = f"client {self._who(job)!r} failed and is tried again: {error}"
                observe(Problem(text, traceback.format_exc()))
                try:
                    found = self._done(job)
                except Exception as again:
                    text = f"client {self._who(job)!r} failed twice: {again}\n{traceback.format_exc()}"
                    raise WorkerError(text) from again
            yield number, found

    def _done(self, job: Job) -> Any:
        with one_thread():
            return self._host.do(job)

    def _who(self, job: Job) -> str:
        return self._host.client or job.last_client
