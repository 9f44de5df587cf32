"""What the engines on one machine have in common: all clients' data and buffers are here, and jobs do the work.

The clients of a round are dealt by size to a fixed number of groups; a group is trained and summed by one job, and the
groups' sums are added in their order. So the result is the same to the bit whoever does the jobs, and memory does not
grow with the number of clients.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from coreplay.coordination import Contribution
from coreplay.coordination.messages import NEVER
from coreplay.coordination.secure.exchange import secure_sum
from coreplay.data import FederatedStream
from coreplay.engines import worker as jobs
from coreplay.engines.sums import Weights, deal
from coreplay.federated.config import Config
from coreplay.federated.engine import EngineError, Evaluation, SecureTotal, Update, Watch
from coreplay.federated.flat import Vector
from coreplay.federated.site import run_name
from coreplay.replay import Buffer, Store
from coreplay.replay.contents import BufferStats, buffer_stats
from coreplay.tasks import Task, WeightedSum

BUFFERS = "buffers.sqlite"  # in the run's folder
MEASURED_AT_ONCE = 1024  # test samples per job
CHOSEN_AT_ONCE = 8  # clients per job of a selection


class WorkerError(EngineError):
    """A client failed twice; names it, with the traceback."""


class MachineEngine(ABC):
    """An engine on one machine; a subclass says who does the jobs.

    It may serve several runs, one after the other, of the same stream and task.
    """

    model: Vector  # the global model, where all jobs find it
    missing: set[tuple[str, str]]  # what the user registered and the jobs do not know

    def __init__(self, stream: FederatedStream, task: Task) -> None:
        self.stream, self.task = stream, task
        self._sizes: dict[str, int] = {}
        self._states: dict[str, bytes] = {}
        self._begun: jobs.Begin | None = None
        self._store: Store | None = None
        self._scratch: Path | None = None

    @abstractmethod
    def _each(self, work: Sequence[Any], watch: Watch) -> Iterator[tuple[int, Any, Vector]]:
        """Do all jobs; give (number, reply, the vector that the job left its sum in) as they come.

        A client that fails is tried once more, then given up with its traceback.
        """

    @abstractmethod
    def _to_all(self, begun: jobs.Begin) -> None:
        """Tell everybody who does jobs that a run begins."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the run's files."""
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def begin(self, config: Config, folder: Path) -> None:
        """Serve this run from now on."""
        if self._store is not None:
            self._store.close()
        self._config, self._groups = config, config.engine.aggregation_groups
        self._weights = Weights(config.federated.max_weight_ratio)
        self._store = Store.open(folder / BUFFERS)
        self._scratch = folder / "scratch"
        self._begun = jobs.Begin(config, folder / BUFFERS, self._scratch)
        self._to_all(self._begun)

    def rewind(self, period: int) -> None:
        """Go back to the buffers of the end of `period`."""
        assert self._store is not None, "begin comes first"
        self._store.rewind(period)
        known = self._store.load_many(self._store.clients())
        self._sizes = {client: len(buffer.items) for client, buffer in known.items()}

    def sizes(self) -> dict[str, int]:
        """Return how many samples each client's buffer holds."""
        return dict(self._sizes)

    def holdings(self) -> BufferStats:
        """Count what all buffers hold: in a simulation all of them are here."""
        assert self._store is not None, "begin comes first"
        return buffer_stats(self._store.load_many(self._store.clients()).values(), self.stream.periods)

    def fingerprint(self) -> str:
        """Return a text that changes whenever a buffer does."""
        assert self._store is not None, "begin comes first"
        return self._store.fingerprint()

    def train(self, period: int, round: int, clients: Sequence[str], values: Vector, watch: Watch) -> Update:
        """Train the clients group by group and add up in the order of the groups."""
        self.model[:] = values
        counts = self._counts(clients, period)
        groups, largest = deal(counts, self._groups), self._weights.largest(counts)
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
        loss = sum((each.loss for each in trained), WeightedSum())
        return Update(change, sum(min(each.samples, largest) for each in trained), loss)

    def _counts(self, clients: Sequence[str], period: int) -> dict[str, int]:
        """Return how many samples each client trains on."""
        numbers = {client: k for k, client in enumerate(self.stream.clients)}
        counts = self.stream.counts("train")[:, period]
        return {client: int(counts[numbers[client]]) + self._sizes.get(client, 0) for client in clients}

    def evaluate(self, values: Vector, watch: Watch) -> Evaluation:
        """Measure the test set of every period, in parts."""
        self.model[:] = values
        sizes = self.stream.counts("test").sum(axis=0).tolist()
        work = [
            jobs.Measure(period, at, min(at + MEASURED_AT_ONCE, size))
            for period, size in enumerate(sizes)
            for at in range(0, size, MEASURED_AT_ONCE)
        ]
        found = {number: reply for number, reply, _ in self._each(work, watch)}
        sums = [WeightedSum()] * self.stream.periods
        for number, job in enumerate(work):
            sums[job.period] = sums[job.period] + found[number]
        return Evaluation(sums)

    def choose(self, period: int, clients: Sequence[str], values: Vector, watch: Watch) -> None:
        """Let each client choose alone; all buffers change in one transaction."""
        self.model[:] = values
        work = [jobs.Choose(period, part) for part in _parts(clients)]
        self._keep([buffer for _, reply, _ in self._each(work, watch) for buffer in reply])

    def contribute(
        self, period: int, clients: Sequence[str], values: Vector, broadcast: bytes | None, watch: Watch
    ) -> Iterator[bytes]:
        """Let clients answer a broadcast; the workers see to several clients at once."""
        if broadcast is None:
            self._states = {}
            self.model[:] = values
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
        self.model[:] = values
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


def _parts(clients: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(clients[at : at + CHOSEN_AT_ONCE]) for at in range(0, len(clients), CHOSEN_AT_ONCE)]


def last_client(job: Any) -> str:
    """Return the client that a job does last; empty if it does none."""
    clients = getattr(job, "clients", ())
    return str(clients[-1]) if clients else ""
