"""What happens where the data is: training, measuring, gradients and choosing, for one client at a time.

A `Site` is one worker process, or one device. It keeps nothing between calls but the model instance and
the files it was given: what must last is in the store, in the coordination states that the caller keeps, and in the
scratch folder, which holds the period's gradients (a sketch, or only the gram where the gradients are exact and made
anew).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from coreplay.coordination import Broadcast, Client, Contribution, GradientMatrix
from coreplay.coordination.matrix import Rows
from coreplay.data import FederatedStream, Samples
from coreplay.federated.algorithm import make_algorithm
from coreplay.federated.config import Config
from coreplay.federated.flat import FlatModel, Vector
from coreplay.federated.pools import ClientPool, kept_buffer, make_client_pool
from coreplay.federated.strategy import ALL
from coreplay.federated.training import Trained, train
from coreplay.files import replacing
from coreplay.gradients import gradient_matrix, select_parameters
from coreplay.replay import Buffer, Store
from coreplay.seeding import generator
from coreplay.selection import choose
from coreplay.tasks import Task, WeightedSum, features, metric_sum, view

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Answer:
    """A client's part in a round of coordination: its contribution and what it must be reminded of in the next."""

    contribution: Contribution | None
    state: bytes


class PoolGradients:
    """The gradient matrix of a pool of known size and dimension, made when somebody first asks.

    `load` gives what is kept of it: the gram, and the rows of a sketch; where there are no rows, `build` makes the
    operator anew.
    """

    def __init__(
        self, size: int, dimension: int, load: Callable[[], dict[str, NDArray[Any]]], build: Callable[[], Any]
    ) -> None:
        self._size, self.dimension, self._load, self._build = size, dimension, load, build

    @cached_property
    def _kept(self) -> dict[str, NDArray[Any]]:
        return self._load()

    @cached_property
    def _matrix(self) -> GradientMatrix:
        return Rows.of_unit(self._kept["rows"]) if "rows" in self._kept else self._build()

    def __len__(self) -> int:
        return self._size

    def gram(self) -> NDArray[Any]:
        """Return GᵀG."""
        return self._kept["gram"]

    def combine(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return Gx."""
        return np.asarray(self._matrix.combine(x))

    def project(self, v: NDArray[Any]) -> NDArray[Any]:
        """Return Gᵀv."""
        return np.asarray(self._matrix.project(v))


class Site:
    """The client side of a run."""

    def __init__(
        self, config: Config, stream: FederatedStream, task: Task, flat: FlatModel, store: Store, scratch: Path
    ) -> None:
        self.config, self.stream, self.task, self.flat = config, stream, task, flat
        self.store, self.scratch = store, scratch
        self._numbers = {client: number for number, client in enumerate(stream.clients)}
        self._algorithm = make_algorithm(config.federated.algorithm, config.federated.options)
        self._probe_cache: dict[Any, Any] = {}

    def pool(self, client: str, period: int) -> ClientPool:
        """Return what the client can train on and choose from."""
        return make_client_pool(self.stream.samples(client, period), self.store.load(client, at=period - 1))

    def train(self, client: str, period: int, round: int, start: Vector) -> Trained:
        """Train the site's model from `start` on the client's pool."""
        self.flat.load(start)
        return train(
            self.flat,
            self.task,
            self.pool(client, period).samples,
            self._algorithm,
            self.config.federated,
            seed=self.config.seed,
            client=client,
            period=period,
            round=round,
        )

    def tally(self, samples: Samples, values: Vector) -> WeightedSum:
        """Measure a model on test samples."""
        self.flat.load(values)
        return metric_sum(self.task, self.flat.model, samples)

    def choose_alone(self, client: str, period: int, values: Vector) -> Buffer:
        """Return the buffer that the client's own choice fills."""
        pool = self.pool(client, period)
        replay = self.config.replay
        if replay.strategy == ALL:
            return kept_buffer(pool, np.arange(len(pool)), client, period)
        kept = choose(
            self.gradients(client, period, pool, values),
            budget=self.config.replay.budget_of(client, pool.offered),
            method=replay.strategy,
            seed=generator(self.config.seed, client, period, "selection"),
            features=lambda: self.features(pool, values),
            new=pool.new,
            seen=pool.seen,
            **replay.options,
        )
        return kept_buffer(pool, kept.indices, client, period)

    def features(self, pool: ClientPool, values: Vector) -> NDArray[np.floating[Any]] | None:
        """Return the feature vectors of a pool at the model `values`; None if the task has none."""
        self.flat.load(values)
        return features(self.task, self.flat.model, pool.samples)

    def coordinate(
        self, client: str, period: int, values: Vector, state: bytes | None, broadcast: Broadcast | None
    ) -> Answer:
        """Answer a broadcast (None: the first round)."""
        half = self.half(client, period, self.pool(client, period), values, state)
        if broadcast is None:
            return Answer(half.begin() if half.takes_part else None, half.state())
        contribution = half.step(broadcast)
        return Answer(contribution, half.state())

    def settle(
        self, client: str, period: int, values: Vector, state: bytes | None, broadcast: Broadcast | None
    ) -> Buffer:
        """Return the buffer after the last broadcast; without one, what the client chooses from what it has."""
        pool = self.pool(client, period)
        kept = self.half(client, period, pool, values, state).finish(broadcast)
        return kept_buffer(pool, kept, client, period)

    def half(self, client: str, period: int, pool: ClientPool, values: Vector, state: bytes | None) -> Client:
        """Return the client's half of a coordination, as it stood when `state` was written."""
        replay = self.config.replay
        half = Client(
            client,
            self.gradients(client, period, pool, values),
            self.config.replay.budget_of(client, pool.offered),
            run=run_name(self.config),
            period=period,
            seed=self.config.seed,
            method=replay.strategy,
            minimum_pool=replay.minimum_pool,
            **replay.options,
        )
        if state is not None:
            half.restore(state)
        return half

    def gradients(self, client: str, period: int, pool: ClientPool, values: Vector) -> PoolGradients:
        """Return the gradients of a pool at the model `values`, from the scratch folder if they are there."""
        given = self.config.gradients
        sketch = {"size": given.sketch_size, "seed": self.config.seed} if given.backend == "sketch" else {}
        path = self.scratch / f"{period}-{self._numbers[client]}.safetensors"

        def loss(model: nn.Module, views: Any) -> Tensor:
            return torch.stack([self.task.per_sample_loss(model, batch) for batch in views]).sum(dim=0)

        def build() -> Any:
            self.flat.load(values)
            views = [self.task.collate(pool.samples, view(self.config.seed, k)) for k in range(given.num_views)]
            memory = given.memory_mb * 2**20
            return gradient_matrix(
                self.flat.model,
                loss,
                views,
                given.backend,
                parameters=given.parameters,
                batch_first=self.task.batch_first,
                probe_cache=self._probe_cache,
                memory_limit=memory,
                **sketch,
            )

        def load() -> dict[str, NDArray[Any]]:
            if not path.exists():
                matrix = build()
                arrays = {"gram": np.ascontiguousarray(matrix.gram())}
                if sketch:
                    arrays["rows"] = np.ascontiguousarray(matrix.rows())
                with replacing(path, durable=False, private=True) as temporary:
                    save_file(arrays, temporary)
            return dict(load_file(path))

        return PoolGradients(len(pool), contribution_length(self.config, lambda _: self.flat.model), load, build)


def contribution_length(config: Config, model: Callable[[int], nn.Module]) -> int:
    """Return how many numbers a contribution has: the sketch's size, or the number of parameters that count."""
    given = config.gradients
    return given.sketch_size if given.backend == "sketch" else select_parameters(model(0), given.parameters).dimension


def run_name(config: Config) -> str:
    """Return the name under which messages of this run go."""
    return f"{config.replay.strategy}-{config.seed}"
