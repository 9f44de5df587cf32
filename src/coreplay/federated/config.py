"""The configuration of a run: TOML, every field with its default, what it means and the paper's value.

`Config.load` reads a file, `PRESETS` are complete configurations to start from, `Config.toml` writes one with comments.
Wrong names and values are refused with the nearest right one before any work starts.
"""

import json
import math
from collections.abc import Mapping
from copy import deepcopy
from datetime import date, time
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreplay.coordination.client import MINIMUM_POOL
from coreplay.data.api import check_source
from coreplay.errors import InputError, unknown
from coreplay.federated.algorithm import make_algorithm
from coreplay.federated.strategy import ALL, NONE, check_strategy, is_coordinated
from coreplay.federated.tracker import check_trackers
from coreplay.files import read_toml, reading
from coreplay.tasks.api import check_task
from coreplay.tasks.bert import OF_NEW_MODELS

LOCAL, SERIAL, SIMULATION, FLOWER = ENGINES = ("local", "serial", "flower-simulation", "flower")


def _field(default: Any, meaning: str, paper: str | None = None, **limits: Any) -> Any:
    text = meaning if paper is None else f"{meaning} Paper: {paper}."
    return Field(default_factory=lambda: default, description=text, **limits)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StreamConfig(_Part):
    """Where the data comes from."""

    source: str = _field("synthetic", "A source; `coreplay data sources` lists them.", "a voice assistant's users")
    options: dict[str, Any] = _field({}, "Options of the source, such as path, clients or periods.")
    clients: int | None = _field(None, "Take a random sample of so many clients; all if absent.", "1000", ge=1)
    sample: int = _field(0, "Seed of that sample, so that strategies can be compared on the same clients.", ge=0)


class TaskConfig(_Part):
    """What is learnt."""

    name: str = _field("masked_lm", "A task: masked_lm, text_classification, image_classification.", "masked_lm")
    options: dict[str, Any] = _field({}, "Options of the task, such as layers, hidden or vocabulary_size.")


class FederatedConfig(_Part):
    """How the clients' models become one."""

    algorithm: str = _field("fedavg", "fedavg, fedprox, fedavgm, fedadagrad, fedadam or fedyogi.", "fedavg")
    options: dict[str, Any] = _field({}, "Options of the algorithm, such as mu or rate.")
    rounds: int = _field(10, "Rounds a period.", "not given", ge=1)
    first_rounds: int | None = _field(
        None, "Rounds of the first period, where the model begins from nothing; as many as later if absent.", ge=1
    )
    clients: int | None = _field(None, "Clients drawn for a round; all that have new data if absent.", ge=1)
    epochs: int = _field(1, "Passes of a client over its data in a round.", "not given", ge=1)
    batch_size: int = _field(16, "Samples a step.", "not given", ge=1)
    optimizer: Literal["sgd", "adamw"] = _field("sgd", "At the client: sgd or adamw.", "not given")
    learning_rate: float = _field(0.1, "At the client.", "not given", gt=0)
    momentum: float = _field(0.0, "Of sgd.", ge=0, lt=1)
    weight_decay: float = _field(0.0, "Of either optimiser.", ge=0)
    clip: float = _field(1.0, "Longest gradient of a step; longer ones are shortened. 0: never.", ge=0)
    max_weight_ratio: float = _field(
        10.0, "No client of a round weighs more than this many times the median one. 0: no limit.", ge=0
    )

    def rounds_of(self, period: int) -> int:
        """Return how many rounds a period has."""
        return self.first_rounds or self.rounds if period == 0 else self.rounds

    def rounds_before(self, period: int) -> int:
        """Return how many rounds all periods before this one have.

        >>> FederatedConfig(rounds=4, first_rounds=10).rounds_before(2), FederatedConfig(rounds=4).rounds_before(2)
        (14, 8)
        """
        return self.rounds_of(0) + self.rounds * (period - 1) if period else 0


class ReplayConfig(_Part):
    """What the clients keep."""

    strategy: str = _field("corrective", "none, full_history, a selector, or a coordination method.", "several")
    options: dict[str, Any] = _field({}, "Options of the strategy.")
    budget: int = _field(20, "How many samples a client may keep.", "5 to 100", ge=1)
    share: float | None = _field(None, "Instead of a budget: a share of all samples it was offered.", gt=0, le=1)
    largest_budget: int | None = _field(None, "With `share`: no client keeps more than this.", ge=1)
    budgets: dict[str, int] = _field({}, "Budgets of single clients by name, instead of the above.")
    rounds: int = _field(4, "Rounds of a coordination.", "1 to 4", ge=0)
    minimum_pool: int = _field(MINIMUM_POOL, "Clients with smaller pools choose alone.", ge=0)
    secure: bool = _field(False, "Coordinate through a secure sum: the server learns no single contribution.")

    def budget_of(self, client: str, offered: int) -> int:
        """Return how many samples a client may keep that was offered so many in all.

        >>> ReplayConfig(share=0.1).budget_of("ann", 52), ReplayConfig(budgets={"bo": 3}).budget_of("bo", 52)
        (5, 3)
        >>> ReplayConfig(share=0.1, largest_budget=40).budget_of("cy", 10**9)
        40
        """
        if client in self.budgets:
            return self.budgets[client]
        if self.share is None:
            return self.budget
        found = max(1, round(self.share * offered))
        return found if self.largest_budget is None else min(found, self.largest_budget)

    def usual_budget(self) -> float | None:
        """Return the budget, or the share instead of it; None for a strategy that does not choose.

        >>> [ReplayConfig(**given).usual_budget() for given in ({}, {"share": 0.1}, {"strategy": "none"})]
        [20, 0.1, None]
        """
        return None if self.strategy in (NONE, ALL) else self.share or self.budget

    def label(self) -> str:
        """Return how tables and figures call the strategy, whatever the budget.

        >>> ReplayConfig().label(), ReplayConfig(strategy="polished", options={"moves": 0}).label()
        ('corrective, 4 rounds', 'polished (moves=0)')
        """
        name, options = self.strategy, [f"{key}={value}" for key, value in self.options.items()]
        if is_coordinated(name):
            name += f", {self.rounds} round{'' if self.rounds == 1 else 's'}"
            options += [f"minimum_pool={self.minimum_pool}"] if self.minimum_pool != MINIMUM_POOL else []
            options += ["secure"] if self.secure else []
        return f"{name} ({', '.join(options)})" if options else name

    def budget_label(self) -> str:
        """Return how tables and figures call the budget.

        >>> ReplayConfig().budget_label(), ReplayConfig(share=0.1).budget_label()
        ('20', '10 %')
        """
        usual = str(self.budget) if self.share is None else f"{100 * self.share:g} %"
        return f"{usual}, own of {len(self.budgets)}" if self.budgets else usual


class GradientsConfig(_Part):
    """The gradients that choices are made from."""

    backend: Literal["sketch", "factored", "dense"] = _field(
        "sketch", "sketch: kept between rounds, `size` numbers a sample; the others are exact.", "exact"
    )
    size: int = _field(4096, "Numbers a sample of a sketch.", ge=1)
    parameters: list[str] | None = _field(None, "Name patterns of the parameters that count; all if absent.", "all")
    masks: int = _field(1, "Random views of a sample (masks) whose gradients are averaged.", "not given", ge=1)
    memory: int = _field(1024, "Megabytes for one client's gradients.", ge=1)


class EngineConfig(_Part):
    """Where the run runs. Results do not depend on `workers`."""

    name: str = _field(
        "local",
        "local: worker processes; serial: the calling process; flower-simulation: Ray; flower: real clients.",
    )
    workers: int | None = _field(None, "Processes, unless the clients are real; one a core if absent.", ge=1)
    groups: int = _field(16, "Into how many sums a round's clients are dealt. Fixes the order of additions.", ge=1)
    checkpoint_seconds: float = _field(30.0, "Write the model at most this often within a period.", ge=0)
    connection: str | None = _field(None, "flower: which connection of Flower's own configuration to use.")
    clients: int = _field(1, "flower: begin when so many clients are there.", ge=1)
    quorum: float = _field(0.5, "Flower: which share of the clients asked must answer.", ge=0, le=1)
    timeout: float = _field(600.0, "Flower: seconds to wait for a client's answer.", gt=0)
    window: int | None = _field(
        None, "Flower: how many models may be on their way; on Ray one more than processes, else 64, if absent.", ge=1
    )


class Config(_Part):
    """A whole run.

    >>> Config().replay.budget, Config(seed=3).seed
    (20, 3)
    """

    seed: int = _field(0, "Makes every random choice, with the client, the period and the purpose.", ge=0)
    periods: int | None = _field(None, "Stop after so many periods; all of the stream if absent.", "10", ge=1)
    baseline: str | None = _field(None, "Folder of a run without replay, for the relative change.")
    trackers: list[str] = _field([], "Where else metrics go: tensorboard, mlflow.")
    stream: StreamConfig = _field(StreamConfig(), StreamConfig.__doc__ or "")
    task: TaskConfig = _field(TaskConfig(), TaskConfig.__doc__ or "")
    federated: FederatedConfig = _field(FederatedConfig(), FederatedConfig.__doc__ or "")
    replay: ReplayConfig = _field(ReplayConfig(), ReplayConfig.__doc__ or "")
    gradients: GradientsConfig = _field(GradientsConfig(), GradientsConfig.__doc__ or "")
    engine: EngineConfig = _field(EngineConfig(), EngineConfig.__doc__ or "")

    @classmethod
    def load(cls, path: Path | str, changes: Mapping[str, Any] | None = None) -> "Config":
        """Read a TOML file; `changes` are values by dotted name, such as {"replay.budget": 5}."""
        config = cls.read(path, changes)
        config.check_names()
        return config

    @classmethod
    def read(cls, path: Path | str, changes: Mapping[str, Any] | None = None) -> "Config":
        """Read a TOML file of a run that was begun: its strategy may be one that only its own program knows."""
        with reading(path, "TOML", "config"):
            return cls._shaped(read_toml(path, "config"), changes, where=f"config {str(path)!r}")

    @classmethod
    def make(
        cls, data: Mapping[str, Any], changes: Mapping[str, Any] | None = None, *, where: str = "config"
    ) -> "Config":
        """Check nested data with changes by dotted name, and make a configuration of it.

        A preset may be named by the key `preset`: the rest changes it.
        """
        config = cls._shaped(data, changes, where)
        config.check_names()
        return config

    def check_names(self) -> None:
        """Refuse sources, tasks, algorithms, strategies, trackers, engines and options that are not known here."""
        if self.engine.name not in ENGINES:
            raise unknown("engine", self.engine.name, ENGINES)
        # real clients may add to the server's options what their own data needs
        check_source(self.stream.source, self.stream.options, complete=self.engine.name != FLOWER)
        check_task(self.task.name, self.task.options)
        make_algorithm(self.federated.algorithm, self.federated.options)
        check_strategy(self.replay.strategy, self.replay.options)
        check_trackers(self.trackers)

    @classmethod
    def _shaped(cls, data: Mapping[str, Any], changes: Mapping[str, Any] | None, where: str) -> "Config":
        merged: dict[str, Any] = {}
        given = deepcopy(dict(data))
        for name, value in (changes or {}).items():
            nested: Any = value
            for key in reversed(name.split(".")):
                nested = {key: nested}
            _merge(given, nested)
        if "preset" in given:
            merged = preset(str(given.pop("preset")))
            if _start_of(given) is not None:  # it has a size and a vocabulary of its own
                for option in OF_NEW_MODELS:
                    merged["task"]["options"].pop(option, None)
        _merge(merged, given)
        try:
            config = cls.model_validate(merged)
        except ValidationError as error:
            raise explained(error, cls, where) from None
        if config.replay.largest_budget is not None and config.replay.share is None:
            raise InputError(
                f"{where}: replay.largest_budget = {config.replay.largest_budget} limits what replay.share gives, and "
                "there is no share: set replay.budget instead"
            )
        for name, budget in config.replay.budgets.items():
            if budget < 1:
                raise InputError(f"{where}: budget of client {name!r} in replay.budgets must be at least 1: {budget}")
        return config

    def toml(self) -> str:
        """Return the configuration as TOML, each value with its meaning as a comment.

        >>> "budget = 20" in Config().toml()
        True
        """
        return "\n".join(_written(self, "")) + "\n"


_TINY: dict[str, Any] = {"vocabulary_size": 8192, "longest": 32}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "stream": {"source": "synthetic", "options": {"clients": 1000, "periods": 10}},
        "task": {"name": "masked_lm", "options": _TINY},
        "federated": {"rounds": 10, "clients": 100, "learning_rate": 0.5},
        "replay": {"strategy": "corrective", "budget": 20},
    },
    "small": {
        "stream": {"source": "synthetic", "options": {"clients": 30, "periods": 5}},
        "task": {
            "name": "masked_lm",
            "options": {
                "layers": 2,
                "hidden": 64,
                "heads": 4,
                "feed_forward": 128,
                "vocabulary_size": 1024,
                "longest": 24,
            },
        },
        "federated": {"rounds": 8, "optimizer": "adamw", "learning_rate": 0.003},
        "replay": {"strategy": "corrective", "budget": 5},
        "gradients": {"size": 1024},
    },
}


def preset(name: str) -> dict[str, Any]:
    """Return a copy of a preset's values.

    >>> sorted(PRESETS)
    ['paper', 'small']
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return deepcopy(PRESETS[name])


def _start_of(given: Mapping[str, Any]) -> Any:
    """Return the pretrained model that a configuration starts from, if it names one."""
    found: Any = given
    for key in ("task", "options", "start"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _merge(target: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = deepcopy(value)


def explained(error: ValidationError, model: type[BaseModel], where: str) -> InputError:
    """Say in one line what is wrong with the first wrong value, with the nearest name for an unknown one."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        part = model
        for key in place[:-1]:
            part = type(part.model_fields[key].get_default(call_default_factory=True))
        section = f" in [{'.'.join(place[:-1])}]" if len(place) > 1 else ""
        return InputError(f"{where}: {unknown('key', place[-1], part.model_fields, of=section)}")
    problem = first["msg"][0].lower() + first["msg"][1:]
    return InputError(f"{where}: {name} = {first['input']!r}: {problem}")


def _written(part: _Part, prefix: str) -> list[str]:
    lines: list[str] = []
    tables: list[str] = []
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, _Part):
            tables += ["", f"# {field.description}", f"[{prefix}{name}]", *_written(value, f"{prefix}{name}.")]
            continue
        lines.append(f"# {field.description}")
        lines.append(f"# {name} =" if value is None else f"{name} = {_value(value)}")
    return lines + tables


def _value(value: Any) -> str:
    """Write a value as TOML: JSON does for all but tables."""
    if isinstance(value, Mapping):
        given = {k: v for k, v in value.items() if v is not None}  # TOML has no word for nothing
        inner = ", ".join(f"{json.dumps(str(k), ensure_ascii=False)} = {_value(v)}" for k, v in given.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan: JSON has other words for them
    if value is None:
        raise InputError("a list in the configuration holds None, which TOML can't say: leave it out of the list")
    if isinstance(value, date | time):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted name.

    >>> flatten({"stream": {"options": {"clients": 5}}, "seed": 0})
    {'stream.options.clients': 5, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
