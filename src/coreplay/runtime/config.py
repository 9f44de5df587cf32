"""The configuration of a run: TOML, every field with its default, what it means and the paper's value.

`Config.load` reads a file, `PRESETS` are complete configurations to start from, `Config.toml` writes one with comments.
Wrong names and values are refused with the nearest right one before any work starts.
"""

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreplay.coordination.client import MINIMUM_POOL
from coreplay.data.sources import check_source
from coreplay.errors import InputError, unknown
from coreplay.files import read_toml, reading
from coreplay.learning import Methods
from coreplay.learning.mixing import Mixing
from coreplay.plugins import load_plugins, resolve
from coreplay.registry import keywords
from coreplay.runtime.config_toml import explained, flatten, merge, written
from coreplay.runtime.presets import PRESETS
from coreplay.runtime.strategy import ALL, NONE, check_strategy, is_coordinated
from coreplay.runtime.tracker import check_trackers
from coreplay.selection.quotas import Quota
from coreplay.tasks import check_task
from coreplay.tasks.bert import OF_NEW_MODELS
from coreplay.validation import Count

ENGINES = ("auto", "processes", "serial", "flower-simulation", "flower")
AUTO, PROCESSES, SERIAL, SIMULATION, FLOWER = ENGINES
GIVEN = "given"  # the name of a stream or a task that is passed to `run` as an object


def _field(default: Any, meaning: str, paper: str | None = None, **limits: Any) -> Any:
    text = meaning if paper is None else f"{meaning} Paper: {paper}."
    return Field(default_factory=lambda: default, description=text, **limits)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StreamConfig(_Part):
    """Where the data comes from."""

    source: str = _field("synthetic", "Data source; `coreplay data sources` lists them.", "a voice assistant's users")
    options: dict[str, Any] = _field({}, "Options of the source, such as path, num_clients or num_periods.")
    num_clients: int | None = _field(
        None, "Number of clients to sample at random from the source; all clients if absent.", "1000", ge=1
    )
    client_seed: int = _field(0, "Seed of that sample, so that strategies are compared on the same clients.", ge=0)


class TaskConfig(_Part):
    """What is learnt."""

    name: str = _field("masked_lm", "Task: masked_lm, text_classification or image_classification.", "masked_lm")
    options: dict[str, Any] = _field({}, "Options of the task, such as num_layers, hidden_size or vocabulary_size.")


class FederatedConfig(_Part):
    """How the clients' models are combined into one."""

    algorithm: str = _field("fedavg", "Federated algorithm; `coreplay algorithms` lists them.", "fedavg")
    options: dict[str, Any] = _field({}, "Options of the algorithm, such as mu or server_lr.")
    rounds: int = _field(10, "Number of training rounds per period.", "not given", ge=1)
    first_rounds: int | None = _field(
        None, "Number of rounds in the first period, which starts from an untrained model; `rounds` if absent.", ge=1
    )
    clients_per_round: int | None = _field(None, "Clients sampled per round; all with new data if absent.", ge=1)
    sampling: Literal["uniform", "reshuffle"] = _field(
        "uniform",
        "How a round's clients are sampled: uniform, or reshuffle, where all have their turn before one has its next.",
        "uniform",
    )
    schedule: Literal["constant", "cosine"] = _field(
        "constant", "Size of the server's steps: constant, or cosine, where it falls to zero within each period."
    )
    buffer_only_clients: bool = _field(False, "Let clients without new data train on their buffers, too.")
    epochs: int = _field(1, "Number of passes of a client over its data per round.", "not given", ge=1)
    batch_size: int = _field(16, "Number of samples per training step.", "not given", ge=1)
    optimizer: Literal["sgd", "adamw"] = _field("sgd", "Optimizer of the clients: sgd or adamw.", "not given")
    learning_rate: float = _field(0.1, "Learning rate of the clients.", "not given", gt=0)
    momentum: float = _field(0.0, "Momentum of the clients' sgd.", ge=0, lt=1)
    weight_decay: float = _field(0.0, "Weight decay of the clients' optimizer.", ge=0)
    max_grad_norm: float = _field(1.0, "Gradient-norm clipping threshold; 0 disables it.", ge=0)
    max_weight_ratio: float = _field(
        10.0, "Upper limit of a client's aggregation weight, as a multiple of the round's median; 0 disables it.", ge=0
    )

    def rounds_of(self, period: int) -> int:
        """Return how many rounds a period has."""
        return self.first_rounds or self.rounds if period == 0 else self.rounds

    def step(self, period: int, round: int) -> float:
        """Return the fraction of the algorithm's update that a round applies.

        >>> [round(FederatedConfig(rounds=4, schedule="cosine").step(0, k), 3) for k in range(4)]
        [1.0, 0.854, 0.5, 0.146]
        """
        return 1.0 if self.schedule == "constant" else (1 + math.cos(math.pi * round / self.rounds_of(period))) / 2

    def rounds_before(self, period: int) -> int:
        """Return how many rounds all periods before this one have.

        >>> FederatedConfig(rounds=4, first_rounds=10).rounds_before(2), FederatedConfig(rounds=4).rounds_before(2)
        (14, 8)
        """
        return self.rounds_of(0) + self.rounds * (period - 1) if period else 0


class ContinualConfig(_Part):
    """How clients learn so that they do not forget, besides replay."""

    methods: list[str] = _field([], "The continual methods, in the order in which they apply.", "none")
    options: dict[str, dict[str, Any]] = _field({}, "The options of each method, by its name.")


class ReplayConfig(_Part):
    """What the clients keep."""

    strategy: str = _field(
        "corrective", "How buffers are filled: none, full_history, a selector or a coordination method.", "several"
    )
    options: dict[str, Any] = _field({}, "Options of the strategy.")
    budget: int = _field(20, "Number of samples that a client may keep.", "5 to 100", ge=1)
    budget_fraction: float | None = _field(
        None, "Budget as a fraction of all samples that a client has received, instead of `budget`.", gt=0, le=1
    )
    max_budget: int | None = _field(None, "Upper limit of the budget that `budget_fraction` gives.", ge=1)
    client_budgets: dict[str, Count] = _field({}, "Budgets of individual clients by name, instead of the above.")
    coordination_rounds: int = _field(4, "Number of rounds of a coordination.", "1 to 4", ge=0)
    minimum_pool: int = _field(MINIMUM_POOL, "Smallest pool that is coordinated; smaller ones select alone.", ge=0)
    secure: bool = _field(False, "Secure aggregation: the server sees no individual client's contribution.")
    public: dict[str, Any] = _field(
        {}, "Public samples that every client also trains on: a table with the source and options of a stream.", "none"
    )
    quota: Quota = _field(
        "none", "Groups of which a client keeps the same number each: none, period or class; or new_old.", "none"
    )
    mixing: Literal["concatenate", "ratio", "weight"] = _field(
        "concatenate",
        "How training mixes kept samples with new ones: concatenate, ratio (a fraction of each batch) or weight.",
        "concatenate",
    )
    kept_fraction: float = _field(0.5, "Mixing by ratio: fraction of kept samples in each batch.", gt=0, lt=1)
    kept_weight: float = _field(
        1.0, "Mixing by weight: loss weight of a kept sample; 0 for the number of samples it stands for.", ge=0
    )
    max_kept_weight: float = _field(10.0, "Mixing by weight: upper limit of the weight when `kept_weight` is 0.", ge=1)
    retrieval: Literal["uniform", "mir"] = _field(
        "uniform", "Mixing by ratio: which kept samples are drawn, uniform or mir (those the step would hurt most)."
    )
    retrieval_candidates: int = _field(50, "Mixing by ratio with mir: number of kept samples to choose from.", ge=1)

    def budget_of(self, client: str, offered: int) -> int:
        """Return the budget of a client that has received `offered` samples in total.

        >>> replay = ReplayConfig(client_budgets={"bo": 3}, budget_fraction=0.1, max_budget=40)
        >>> replay.budget_of("bo", 52), replay.budget_of("cy", 10**9)
        (3, 40)
        """
        if client in self.client_budgets:
            return self.client_budgets[client]
        if self.budget_fraction is None:
            return self.budget
        found = max(1, round(self.budget_fraction * offered))
        return found if self.max_budget is None else min(found, self.max_budget)

    def usual_budget(self) -> float | None:
        """Return the budget or the budget fraction; None for a strategy that does not select.

        >>> [ReplayConfig(**given).usual_budget() for given in ({}, {"budget_fraction": 0.1}, {"strategy": "none"})]
        [20, 0.1, None]
        """
        return None if self.strategy in (NONE, ALL) else self.budget_fraction or self.budget

    def label(self) -> str:
        """Return how tables and figures call the strategy, whatever the budget.

        >>> ReplayConfig().label(), ReplayConfig(strategy="polished", options={"moves": 0}).label()
        ('corrective, 4 rounds', 'polished (moves=0)')
        """
        name, options = self.strategy, [f"{key}={value}" for key, value in self.options.items()]
        if is_coordinated(name):
            name += f", {self.coordination_rounds} round{'' if self.coordination_rounds == 1 else 's'}"
            options += [f"minimum_pool={self.minimum_pool}"] if self.minimum_pool != MINIMUM_POOL else []
            options += ["secure"] if self.secure else []
        options += ["public samples"] if self.public else []
        for field in ("quota", "mixing", "kept_fraction", "kept_weight", "max_kept_weight", "retrieval"):
            value = getattr(self, field)
            if value != type(self).model_fields[field].get_default(call_default_factory=True):
                options.append(f"{field}={value}")
        return f"{name} ({', '.join(options)})" if options else name

    def budget_label(self) -> str:
        """Return how tables and figures call the budget.

        >>> ReplayConfig().budget_label(), ReplayConfig(budget_fraction=0.1).budget_label()
        ('20', '10 %')
        """
        usual = str(self.budget) if self.budget_fraction is None else f"{100 * self.budget_fraction:g} %"
        return f"{usual}, own of {len(self.client_budgets)}" if self.client_budgets else usual


class GradientsConfig(_Part):
    """The gradients that selections are based on."""

    backend: Literal["sketch", "factored", "dense"] = _field(
        "sketch",
        "sketch keeps `sketch_size` numbers per sample between rounds; factored and dense are exact.",
        "exact",
    )
    sketch_size: int = _field(4096, "Length of a sample's gradient sketch.", ge=1)
    parameters: list[str] | None = _field(
        None, "Name patterns of the parameters whose gradients are used; all parameters if absent.", "all"
    )
    num_views: int = _field(1, "Number of random views (masks) per sample to average over.", "not given", ge=1)
    memory_mb: int = _field(1024, "Memory limit for one client's gradients, in megabytes.", ge=1)


class EngineConfig(_Part):
    """Where the run is executed. Results do not depend on `workers`."""

    name: str = _field(
        "auto",
        "Engine: serial (the calling process), processes (worker processes), auto (serial for small runs, else "
        "processes), flower-simulation (Ray) or flower (real clients).",
    )
    workers: int | None = _field(None, "Worker processes (not of engine flower); one per core if absent.", ge=1)
    aggregation_groups: int = _field(
        16, "Number of partial sums per round; it fixes the order of additions and so the exact result.", ge=1
    )
    checkpoint_seconds: float = _field(30.0, "Minimum time between checkpoints within a period, in seconds.", ge=0)
    connection: str | None = _field(None, "flower: name of the connection in Flower's own configuration.")
    min_clients: int = _field(1, "flower: number of connected clients required to start.", ge=1)
    quorum: float = _field(0.5, "Flower engines: fraction of the requested clients that must reply.", ge=0, le=1)
    timeout: float = _field(600.0, "Flower engines: seconds to wait for a client's reply.", gt=0)
    max_in_flight: int | None = _field(
        None,
        "Flower engines: maximum number of unanswered requests; if absent, one more than the workers on Ray, else 64.",
        ge=1,
    )


class Config(_Part):
    """A whole run.

    >>> Config().replay.budget, Config(seed=3).seed
    (20, 3)
    """

    seed: int = _field(0, "Seed of every random choice, together with the client, the period and the purpose.", ge=0)
    periods: int | None = _field(None, "Number of periods to run; all periods of the stream if absent.", "10", ge=1)
    baseline: str | None = _field(None, "Folder of a run without replay, with which this one is compared.")
    plugins: list[str] = _field([], "Your files or modules that register selectors, algorithms, tasks or the like.")
    trackers: list[str] = _field([], "Trackers that also receive the metrics: tensorboard, mlflow.")
    stream: StreamConfig = _field(StreamConfig(), StreamConfig.__doc__ or "")
    task: TaskConfig = _field(TaskConfig(), TaskConfig.__doc__ or "")
    federated: FederatedConfig = _field(FederatedConfig(), FederatedConfig.__doc__ or "")
    continual: ContinualConfig = _field(ContinualConfig(), ContinualConfig.__doc__ or "")
    replay: ReplayConfig = _field(ReplayConfig(), ReplayConfig.__doc__ or "")
    gradients: GradientsConfig = _field(GradientsConfig(), GradientsConfig.__doc__ or "")
    engine: EngineConfig = _field(EngineConfig(), EngineConfig.__doc__ or "")

    @classmethod
    def load(
        cls, path: Path | str, changes: Mapping[str, Any] | None = None, *, plugins: Iterable[str] = ()
    ) -> "Config":
        """Read a TOML file and load its plugins, which are relative to the file's folder.

        `changes` are values by dotted name, such as {"replay.budget": 5}; `plugins` are added to those of the file, and
        are relative to the current folder.
        """
        return cls.read(path, changes).with_plugins(Path(path).parent, plugins).checked()

    @classmethod
    def read(cls, path: Path | str, changes: Mapping[str, Any] | None = None) -> "Config":
        """Read a TOML file without loading its plugins: what they register need not be known here."""
        with reading(path, "TOML", "config"):
            return cls._shaped(read_toml(path, "config"), changes, where=f"config {str(path)!r}")

    @classmethod
    def make(
        cls,
        data: Mapping[str, Any],
        changes: Mapping[str, Any] | None = None,
        *,
        where: str = "config",
        base: Path | str = ".",
        plugins: Iterable[str] = (),
    ) -> "Config":
        """Check nested data with changes by dotted name, and make a configuration of it.

        A preset may be named by the key `preset`: the rest changes it. Plugins in the data are relative to `base`.
        """
        return cls._shaped(data, changes, where).with_plugins(base, plugins).checked()

    def with_plugins(self, base: Path | str, more: Iterable[str] = ()) -> "Config":
        """Return the configuration with the paths of plugins made absolute, and more plugins of the current folder."""
        found = [resolve(name, base) for name in self.plugins] + [resolve(name) for name in more]
        return self.model_copy(update={"plugins": list(dict.fromkeys(found))})

    def checked(self) -> "Config":
        """Load the plugins, and refuse names and options of anything that is not known then."""
        load_plugins(self.plugins)
        if self.engine.name not in ENGINES:
            raise unknown("engine", self.engine.name, ENGINES)
        # real clients may add to the server's options what their own data needs
        if self.stream.source != GIVEN:
            check_source(self.stream.source, self.stream.options, complete=self.engine.name != FLOWER)
        if self.task.name != GIVEN:
            check_task(self.task.name, self.task.options)
        for hook in self.methods().hooks.values():
            hook.check(self.federated)
        check_strategy(self.replay.strategy, self.replay.options, self.replay.quota)
        if self.replay.public:
            public = self.public_stream()
            check_source(public.source, public.options, complete=self.engine.name != FLOWER)
        check_trackers(self.trackers)
        return self

    def public_stream(self) -> StreamConfig:
        """Return where the public samples come from."""
        if not self.replay.public.keys() - {"options", "num_clients", "client_seed"}:
            raise InputError(f'replay.public = {self.replay.public} names no source: add source = "files" or another')
        try:
            return StreamConfig(**self.replay.public)
        except ValidationError as error:
            raise explained(error, StreamConfig, "replay.public") from None

    def label(self) -> str:
        """Return how tables and figures call what is compared: the strategy and the continual methods.

        >>> Config.make({"continual": {"methods": ["l2"], "options": {"l2": {"strength": 1.0}}}}).label()
        'corrective, 4 rounds + l2 (strength=1.0)'
        """
        found = [self.replay.label()]
        for name in self.continual.methods:
            options = ", ".join(f"{key}={value}" for key, value in self.continual.options.get(name, {}).items())
            found.append(f"{name} ({options})" if options else name)
        return " + ".join(found)

    def methods(self) -> Methods:
        """Return the algorithm and the continual methods of the run."""
        named, options = self.continual.methods, self.continual.options
        if len(named) > len(set(named)):
            raise InputError(f"continual.methods = {named} has a name twice: name each method once")
        for name in sorted(options.keys() - set(named)):
            raise InputError(f"continual.options.{name}: continual.methods does not name {name!r}; add or remove it")
        replay, mixing = self.replay, None
        if replay.retrieval != "uniform" and replay.mixing != "ratio":
            raise InputError(
                f'replay.retrieval = "{replay.retrieval}" chooses what each batch draws from the buffer: '
                f'set replay.mixing = "ratio" (now "{replay.mixing}")'
            )
        if replay.mixing != "concatenate":
            mixing = Mixing(**{name: getattr(replay, name) for name in keywords(Mixing)})
        return Methods(self.federated.algorithm, self.federated.options, {n: options.get(n, {}) for n in named}, mixing)

    @classmethod
    def _shaped(cls, data: Mapping[str, Any], changes: Mapping[str, Any] | None, where: str) -> "Config":
        """Put the changes and the data over the preset that they name, if any, and check the values."""
        given = deepcopy(dict(data))
        for name, value in (changes or {}).items():
            nested: Any = value
            for key in reversed(name.split(".")):
                nested = {key: nested}
            merge(given, nested)
        merged: dict[str, Any] = {}
        if "preset" in given:
            name = str(given.pop("preset"))
            if name not in PRESETS:
                raise unknown("preset", name, PRESETS)
            merged = deepcopy(PRESETS[name])
            if flatten(given).get("task.options.pretrained") is not None:  # it has its own size and vocabulary
                for option in OF_NEW_MODELS:
                    merged["task"]["options"].pop(option, None)
        merge(merged, given)
        try:
            config = cls.model_validate(merged)
        except ValidationError as error:
            raise explained(error, cls, where) from None
        if config.replay.max_budget is not None and config.replay.budget_fraction is None:
            raise InputError(
                f"{where}: replay.max_budget = {config.replay.max_budget} limits what replay.budget_fraction gives, "
                "which is not set: set replay.budget instead"
            )
        return config

    def toml(self) -> str:
        """Return the configuration as TOML, each value with its meaning as a comment.

        >>> "budget = 20" in Config().toml()
        True
        """
        return "\n".join(written(self)) + "\n"
