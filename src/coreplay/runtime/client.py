"""The client runtime: the one object that answers requests, wherever the client is.

The serial engine, worker processes and Flower's clients carry requests to it. Between requests it keeps nothing but the
model instance and the pools that it has read. What must last is in the store (buffers, the state of learning hooks, the
answers in a coordination) and in the scratch folder, which holds the period's gradients. So the same request twice gets
the same reply, in whatever process.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, load_file, save, save_file
from torch import Tensor, nn

from coreplay.coordination import ArrayGradients, Client, GradientMatrix, Session
from coreplay.data import FederatedStream, Samples
from coreplay.data import load as load_stream
from coreplay.errors import InputError, RefusedError
from coreplay.files import atomic_write
from coreplay.gradients import gradient_matrix, select_parameters
from coreplay.learning import FlatModel, LearningContext, Turn, train
from coreplay.learning.training import contexts, finish_period
from coreplay.replay import Buffer, Store
from coreplay.replay.contents import items_of, samples_of
from coreplay.replay.store import Moment
from coreplay.runtime.config import Config
from coreplay.runtime.requests import (
    CHANGE,
    MODEL,
    PERIOD_START,
    Contribute,
    ContributeReply,
    Erase,
    Evaluate,
    EvaluateReply,
    FinishPeriod,
    KeptReply,
    Reply,
    Request,
    SecureStep,
    Select,
    Settle,
    Train,
    TrainReply,
)
from coreplay.runtime.strategy import ALL
from coreplay.seeding import generator
from coreplay.selection import make_pool, select_from
from coreplay.tasks import Task, WeightedSum, features, metric_sum, sample_losses, view

CACHED_POOLS = 1000


@dataclass(frozen=True)
class ClientPool:
    """What a client can train on and choose from in a period: its new samples and its buffer."""

    samples: Samples
    period: int
    seen: int  # samples offered in earlier periods

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def new(self) -> NDArray[np.bool_]:
        """Which samples are new in this period."""
        return np.asarray(self.samples.arrived == self.period)

    @property
    def offered(self) -> int:
        """How many samples the client was ever offered."""
        return self.seen + int(self.new.sum())


class PoolGradients:
    """The gradient matrix of a pool of known size and dimension, computed when it is first needed.

    `load` returns what is cached of it: the gram, and the rows of a sketch. Where there are no rows, `build` makes the
    operator again.
    """

    def __init__(
        self, size: int, dimension: int, load: Callable[[], dict[str, NDArray[Any]]], build: Callable[[], Any]
    ) -> None:
        self._size, self.dimension, self._load, self._build = size, dimension, load, build

    @cached_property
    def _cached(self) -> dict[str, NDArray[Any]]:
        return self._load()

    @cached_property
    def _matrix(self) -> GradientMatrix:
        return ArrayGradients(self._cached["rows"], unit=True) if "rows" in self._cached else self._build()

    def __len__(self) -> int:
        return self._size

    def gram(self) -> NDArray[Any]:
        """Return GᵀG."""
        return self._cached["gram"]

    def norms(self) -> NDArray[Any]:
        """Return the lengths of the gradients."""
        return self._cached["norms"]

    def combine(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return Gx."""
        return np.asarray(self._matrix.combine(x))

    def project(self, v: NDArray[Any]) -> NDArray[Any]:
        """Return Gᵀv."""
        return np.asarray(self._matrix.project(v))


class ClientRuntime:
    """Answers the requests of one run, for one client or for all clients of a simulation.

    `flat` is an instance of the model, which requests overwrite. `store` holds buffers, states and sessions, and the
    folder `scratch` the gradients of the current period.
    """

    def __init__(
        self, config: Config, stream: FederatedStream, task: Task, flat: FlatModel, store: Store, scratch: Path
    ) -> None:
        self.config, self.stream, self.task, self.flat = config, stream, task, flat
        self.store, self.scratch = store, scratch
        self._numbers = {client: number for number, client in enumerate(stream.clients)}
        self._methods = config.methods()
        self._probe_cache: dict[Any, Any] = {}
        self._pools: dict[str, tuple[Any, ClientPool]] = {}  # the last one of each client, and its version

    def handle(self, client: str, request: Request) -> Reply:
        """Answer a request for a client."""
        handler: Callable[[str, Request], Reply] | None = getattr(self, f"_on_{request.kind}", None)
        if handler is None:
            raise RefusedError(f"unsupported request {request.kind!r}: server and client versions may differ")
        return handler(client, request).answering(request, client)

    def pool(self, client: str, period: int) -> ClientPool:
        """Return what the client can train on and choose from."""
        version = (period, self.store.version(client, at=period - 1))
        known = self._pools.get(client)
        if known is not None and known[0] == version:
            return known[1]
        new, buffer = self.stream.samples(client, period), self.store.load(client, at=period - 1)
        samples = Samples.joined([new, samples_of(buffer.items, new)]) if buffer.items else new
        if len(self._pools) >= CACHED_POOLS:
            self._pools.clear()
        found = ClientPool(samples, period, buffer.seen)
        self._pools[client] = version, found
        return found

    def _on_train(self, client: str, request: Train) -> TrainReply:
        """Train from the request's model, save the hooks' state, and return the change."""
        self.flat.load(request.model)
        pool, now = self.pool(client, request.period), (request.period, request.round)
        samples = Samples.joined([pool.samples, self._public]) if self.config.replay.public else pool.samples
        about = (self.flat, self.task, samples, self._methods, self.config.federated, self._turn(client, request))
        found = train(*about, seen=pool.seen, **self._given(client, request, now))
        if found.state:
            self.store.save_state(client, now, save(found.state), request.keep_from)
        change = self.flat.numpy()  # in place of the model, which every request overwrites
        change -= request.model
        arrays = {CHANGE: change} | {name: vector.numpy() for name, vector in found.sums.items()}
        return TrainReply(samples=len(pool), total=found.loss.total, weight=found.loss.weight, arrays=arrays)

    @cached_property
    def _public(self) -> Samples:
        return public_samples(self.config, self.stream)

    def _turn(self, client: str, request: Request) -> Turn:
        return Turn(self.config.seed, client, request.period, request.round)

    def _given(self, client: str, request: Request, before: Moment) -> dict[str, Any]:
        """Return what hooks see besides the pool: their last state at this client, and what the server sent."""
        known = self.store.state(client, before) if self._methods.keep_state else None
        vectors = {name: _tensor(array) for name, array in request.arrays.items() if name != MODEL}
        start = vectors.pop(PERIOD_START, None)
        return {"state": load(known) if known else {}, "received": vectors, "period_model": start}

    def _contexts(self, client: str, request: Request, pool: ClientPool, before: Moment) -> dict[str, LearningContext]:
        """Return what each hook sees outside of training, with the request's model."""
        self.flat.load(request.model)
        about = (self._methods, self.flat, self.task, pool.samples, self.config.federated, self._turn(client, request))
        return contexts(*about, **self._given(client, request, before))

    def _on_finish_period(self, client: str, request: FinishPeriod) -> TrainReply:
        """Let the hooks finish the period, save their state, and return their sums."""
        pool, now = self.pool(client, request.period), (request.period, request.round)
        seen = self._contexts(client, request, pool, now)
        sums, state = finish_period(self._methods, seen, self._turn(client, request))
        if state:
            self.store.save_state(client, now, save(state), request.keep_from)
        return TrainReply(samples=len(pool), arrays={name: vector.numpy() for name, vector in sums.items()})

    def _on_evaluate(self, client: str, request: Evaluate) -> EvaluateReply:
        """Measure the model on the client's test samples, or on rows of those that all clients have together."""
        self.flat.load(request.model)
        sums = [WeightedSum()] * (self.config.periods or self.stream.periods)
        if request.rows is None:
            tests = (self.stream.samples(client, period, "test") for period in range(len(sums)))
            sums = [metric_sum(self.task, self.flat.model, samples) for samples in tests]
        else:
            period, first, last = request.rows
            samples = self.stream.of_period(period, "test")[slice(first, last)]
            sums[period] = metric_sum(self.task, self.flat.model, samples)
        return EvaluateReply(totals=[found.total for found in sums], weights=[found.weight for found in sums])

    def _on_select(self, client: str, request: Select) -> KeptReply:
        """Choose alone, and keep the choice."""
        pool, replay = self.pool(client, request.period), self.config.replay
        if replay.strategy == ALL:
            return self._keep(client, request, pool, pool.samples)
        gradients, columns = self.gradients(client, pool, request.model), self._columns(pool, request.model)
        found = select_from(
            make_pool(gradients, new=pool.new, seen=pool.seen, columns=columns),
            budget=replay.budget_of(client, pool.offered),
            method=replay.strategy,
            seed=generator(self.config.seed, client, request.period, "selection"),
            quota=replay.quota,
            **replay.options,
        )
        kept = pool.samples[found.indices]
        if found.weights is not None:
            kept = kept.replaced(weight=found.weights)
        return self._keep(client, request, pool, kept)

    def _columns(self, pool: ClientPool, model: NDArray[Any]) -> dict[str, Any]:
        """Return the columns that selectors and coordination methods may ask for; some are computed on demand."""
        samples = pool.samples

        def computed(compute: Callable[..., Any]) -> Any:
            self.flat.load(model)
            return compute(self.task, self.flat.model, samples)

        given = {name: getattr(samples, name) for name in ("label", "arrived", "timestamp", "weight")}
        on_demand = {"features": partial(computed, features), "losses": partial(computed, sample_losses)}
        return {**samples.extras, **given, **on_demand}

    def _on_contribute(self, client: str, request: Contribute) -> ContributeReply:
        """Answer a broadcast."""
        session = self._session(client, request)
        broadcast = request.data or None
        found = session.contribute(request.session, broadcast, secure=request.secure, attempt=request.attempt)
        self.store.save_session(client, session.state())
        return ContributeReply(data=found.data, basis=found.basis, dimension=found.dimension)

    def _on_secure_step(self, client: str, request: SecureStep) -> ContributeReply:
        """Take one step of a secure sum."""
        session = self._session(client, request)
        data = session.step(request.session, request.step, request.round, request.data)
        self.store.save_session(client, session.state())  # better no answer than two different ones
        return ContributeReply(data=data)

    def _on_settle(self, client: str, request: Settle) -> KeptReply:
        """Keep what the last broadcast makes the client choose."""
        pool = self.pool(client, request.period)
        session = self._session(client, request)
        kept = pool.samples[session.finish(request.session, request.data or None)]
        self.store.save_session(client, session.state())  # without secrets, so that a repeated request is answered
        return self._keep(client, request, pool, kept)

    def _session(self, client: str, request: Request) -> Session:
        def make() -> Client:
            pool, replay = self.pool(client, request.period), self.config.replay
            return Client(
                client,
                self.gradients(client, pool, request.model),
                replay.budget_of(client, pool.offered),
                run=run_name(self.config),
                period=request.period,
                seed=self.config.seed,
                method=replay.strategy,
                minimum_pool=replay.minimum_pool,
                columns=self._columns(pool, request.model),
                new=pool.new,
                seen=pool.seen,
                quota=replay.quota,
                **replay.options,
            )

        return Session(make, self.store.session(client))

    def _keep(self, client: str, request: Request, pool: ClientPool, kept: Samples) -> KeptReply:
        """Put chosen samples into the client's buffer, with what hooks want to keep beside them."""
        keeping = self._methods.overriding("keep")
        seen = self._contexts(client, request, pool, (request.period + 1, 0)) if keeping else {}
        for name, hook in keeping.items():
            found = hook.keep(seen[name], kept)
            if not isinstance(found, Samples) or not np.array_equal(found.ids, kept.ids):
                turn = self._turn(client, request)
                raise InputError(f"{name!r} {turn}: keep must return the samples that it got, in their order")
            kept = found
        self.store.replace(Buffer(client, request.period, pool.offered, items_of(kept)))
        return KeptReply(kept=len(kept), held=request.period)

    def _on_erase(self, client: str, request: Erase) -> KeptReply:
        """Delete a sample from everything that the client keeps."""
        self.store.erase(client, request.key)
        self._pools.pop(client, None)
        return self._on_inspect(client, request)

    def _on_inspect(self, client: str, request: Request) -> KeptReply:
        """Say what the client holds."""
        buffer = self.store.load(client)
        return KeptReply(kept=len(buffer.items), held=buffer.period)

    def gradients(self, client: str, pool: ClientPool, model: NDArray[Any]) -> PoolGradients:
        """Return the gradients of a pool at a model, from the scratch folder if they are there."""
        given = self.config.gradients
        sketch = {"size": given.sketch_size, "seed": self.config.seed} if given.backend == "sketch" else {}
        path = self.scratch / f"{pool.period}-{self._numbers[client]}.safetensors"

        def loss(module: nn.Module, views: Any) -> Tensor:
            return torch.stack([self.task.per_sample_loss(module, batch) for batch in views]).sum(dim=0)

        def build() -> Any:
            self.flat.load(model)
            views = [self.task.collate(pool.samples, view(self.config.seed, k)) for k in range(given.num_views)]
            return gradient_matrix(
                self.flat.model,
                loss,
                views,
                given.backend,
                parameters=given.parameters,
                batch_first=self.task.batch_first,
                probe_cache=self._probe_cache,
                memory_limit=given.memory_mb * 2**20,
                **sketch,
            )

        def cached() -> dict[str, NDArray[Any]]:
            if not path.exists():
                matrix = build()
                arrays = {"gram": np.ascontiguousarray(matrix.gram()), "norms": np.asarray(matrix.norms())}
                if sketch:
                    arrays["rows"] = np.ascontiguousarray(matrix.rows())
                with atomic_write(path, durable=False, private=True) as temporary:
                    save_file(arrays, temporary)
            return dict(load_file(path))

        return PoolGradients(len(pool), contribution_length(self.config, lambda _: self.flat.model), cached, build)


def public_samples(config: Config, stream: FederatedStream) -> Samples:
    """Return the public samples of a run, with the labels of its stream and as if kept from before its first period."""
    public = config.public_stream()
    found = load_stream(public.source, **public.options).all()
    ours, theirs = (isinstance(each.content, np.ndarray) for each in (stream, found))
    if ours != theirs or (ours and stream.content.shape[1:] != found.content.shape[1:]):
        kinds = [
            f"arrays of shape {s.content.shape[1:]}" if a else "texts" for s, a in ((stream, ours), (found, theirs))
        ]
        raise InputError(f"the stream has {kinds[0]}, and source {public.source!r} gives {kinds[1]}")
    names: dict[str | None, int] = {name: k for k, name in enumerate(stream.label_names)} | {None: -1}
    labels = [names.get(label, -1) for label in found.labels]
    return replace(found, label=np.array(labels), label_names=stream.label_names).replaced(arrived=-1)


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def contribution_length(config: Config, model: Callable[[int], nn.Module]) -> int:
    """Return how many numbers a contribution has: the sketch's size, or the number of parameters that count."""
    given = config.gradients
    return given.sketch_size if given.backend == "sketch" else select_parameters(model(0), given.parameters).dimension


def run_name(config: Config) -> str:
    """Return the name of the run in messages of a coordination."""
    return f"{config.replay.strategy}-{config.seed}"
