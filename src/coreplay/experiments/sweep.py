"""A sweep: many runs that differ in strategy, budget, seed, or anything else of the configuration.

A seed determines the initial model, the batches, the masks and the client sampling per round. If `stream.num_clients`
asks for a sample of the clients, it determines that sample too. Strategies are therefore compared seed by seed, on the
same clients, batches and masks. Shared work is done once: a strategy that ignores the budget runs once for all budgets,
and the first period, in which no client has a buffer yet, is trained once for all strategies and budgets.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import as_file, files
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreplay.errors import InputError
from coreplay.files import read_toml, reading
from coreplay.plugins import plugin_sources, resolve
from coreplay.runtime import Config
from coreplay.runtime.config_toml import explained, toml_value
from coreplay.runtime.strategy import ALL, NONE, is_coordinated
from coreplay.validation import check_value

PLAN = "sweep.toml"  # the plan, in the folder of a sweep
MAX_RUNS = 10_000
CONTINUAL = "continual"
# what does not affect the first period; continual methods may, see `Planned.first`
LATER = {"continual", "replay", "gradients", "engine", "baseline", "trackers", "plugins"}


@dataclass(frozen=True)
class Planned:
    """One run of a sweep: its folder name, the labels of its strategy and budget, and its configuration."""

    name: str
    strategy: str
    budget: str
    config: Config

    @cached_property
    def first(self) -> str:
        """A digest that is equal for runs with the same first period."""
        given = self.config.model_dump(mode="json", exclude=LATER)
        hooks, continual = self.config.methods().during(0).hooks, self.config.continual
        given["continual"] = {name: continual.options.get(name, {}) for name in continual.methods if name in hooks}
        return _digest(
            [given, self.config.engine.aggregation_groups, *sorted(plugin_sources(self.config.plugins).values())]
        )

    @cached_property
    def group(self) -> str:
        """A digest that is equal for runs with the same stream and task."""
        return _digest([self.config.stream.model_dump(mode="json"), self.config.task.model_dump(mode="json")])


class Sweep(BaseModel):
    """The plan of a sweep: every strategy with every budget, seed and combination of the grid.

    >>> sweep = Sweep.make({"strategies": ["none", "polished"], "budgets": [5, 20], "run": {"preset": "small"}})
    >>> [planned.name for planned in sweep.runs]
    ['none-seed0', 'polished-5-seed0', 'polished-20-seed0']
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategies: list[str | dict[str, Any]] = Field(
        default_factory=list,
        description="Names, or tables of [replay] options such as strategy and coordination_rounds. There `continual` "
        "names continual methods, in a list or a table with the options of each.",
    )
    budgets: list[Annotated[int, Field(strict=True, ge=1)]] = Field(
        default_factory=list, description="Budgets; by default the budget of [run]."
    )
    seeds: list[Annotated[int, Field(strict=True, ge=0)]] = Field(
        default_factory=lambda: [0], description="Seeds; a seed also determines the sample of clients."
    )
    grid: dict[str, list[Any]] = Field(
        default_factory=dict, description="Values of other options by dotted name, such as federated.learning_rate."
    )
    plugins: list[str] = Field(default_factory=list, description="Plugins of all runs, besides those in [run].")
    run: dict[str, Any] = Field(default_factory=dict, description="The configuration shared by all runs.")

    @classmethod
    def load(cls, path: Path | str, *, plugins: Iterable[str] = ()) -> "Sweep":
        """Read a TOML file, with more plugins than it names itself."""
        with reading(path, "TOML", "sweep"):
            data = read_toml(path, "sweep")
            return cls.make(data, where=f"sweep {str(path)!r}", base=Path(path).parent, plugins=plugins)

    @classmethod
    def demo(cls) -> "Sweep":
        """Return the sweep of `coreplay demo`."""
        with as_file(files("coreplay.experiments") / "demo.toml") as path:
            return cls.load(path)

    @classmethod
    def make(
        cls, data: Mapping[str, Any], *, where: str = "sweep", base: Path | str = ".", plugins: Iterable[str] = ()
    ) -> "Sweep":
        """Build a sweep and validate it, including the configuration of every run.

        Plugins in the data are relative to `base`, those in `plugins` to the current folder.
        """
        _check_shapes(data, where)
        try:
            sweep = cls.model_validate(dict(data))
        except ValidationError as error:
            raise explained(error, cls, where) from None
        named = sweep.plugins + check_value(sweep.run.get("plugins", []), list[str], f"{where}: run.plugins")
        found = [resolve(name, base) for name in named] + [resolve(name) for name in plugins]
        run = {key: value for key, value in sweep.run.items() if key != "plugins"}
        sweep = sweep.model_copy(update={"plugins": list(dict.fromkeys(found)), "run": run})
        for name in ("strategies", "seeds"):
            if not getattr(sweep, name):
                raise InputError(f"{where}: {name} is empty: give at least one value")
        for name, values in sweep.grid.items():
            if not values:
                raise InputError(f"{where}: grid.{name} is empty: give it values, or remove it")
            if name in sweep._fixed():
                raise InputError(f"{where}: grid.{name} is also set by strategies, budgets or seeds: set it once")
        lists: list[Sized] = [sweep.strategies, sweep.seeds, sweep.budgets or [0], *sweep.grid.values()]
        if math.prod(len(values) for values in lists) > MAX_RUNS:
            raise InputError(f"{where}: the plan has more than {MAX_RUNS} runs: split it into several sweeps")
        try:
            names = [planned.name for planned in sweep.runs]
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise InputError(f"{where}: run {twice!r} occurs twice: list each strategy, budget, seed and value once")
        return sweep

    def _fixed(self) -> set[str]:
        """Return the options that the grid cannot set because the other lists do."""
        tables = [given for given in self.strategies if isinstance(given, dict)]
        taken = {"seed", "replay.strategy"} | {f"replay.{name}" for table in tables for name in table}
        taken |= {"continual.methods", "continual.options"} if any(CONTINUAL in table for table in tables) else set()
        return taken | ({"replay.budget", "replay.budget_fraction"} if self.budgets else set())

    @cached_property
    def runs(self) -> tuple[Planned, ...]:
        """All runs, seed by seed."""
        return tuple(self._planned())

    def _continual(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table [continual] of a strategy, with those options of [run] that are for its methods."""
        usual, tables = self.run.get(CONTINUAL, {}), [t for t in self.strategies if isinstance(t, dict)]
        named = [t[CONTINUAL] for t in tables if CONTINUAL in t]
        if not named or not isinstance(usual, Mapping):
            return {}  # as [run] says
        kinds, what = list[str] | dict[str, dict[str, Any]], "a list of methods, or a table with the options of each"
        for given in named:
            check_value(given, kinds, f"strategies: continual ({what})")
        shared, methods = usual.get("options", {}), usual.get("methods", [])
        for name in shared:
            if not any(name in given for given in (methods, *named)):
                raise InputError(f"run.continual.options.{name} are options of a method that no strategy names")
        own = table.get(CONTINUAL, methods)
        options = {name: {**shared.get(name, {}), **(own[name] if isinstance(own, dict) else {})} for name in own}
        found = {"methods": list(own), "options": {name: value for name, value in options.items() if value}}
        return {CONTINUAL: found}

    def toml(self, plugins: list[str]) -> str:
        """Return the sweep as TOML, with these names of its plugins."""
        given = self.model_dump(exclude_defaults=True) | {"plugins": plugins}
        return "".join(f"{name} = {toml_value(value)}\n" for name, value in given.items())

    def _planned(self) -> Iterator[Planned]:
        for seed, values in product(self.seeds, product(*self.grid.values())):
            others = dict(zip(self.grid, values, strict=True))
            common = {"seed": seed} | others
            if Config.make(self.run | self._continual({}), common, plugins=self.plugins).stream.num_clients is not None:
                common = {"stream.client_seed": seed} | common
            for given in self.strategies:
                table: dict[str, Any] = {"strategy": given} if isinstance(given, str) else given
                replay = {name: value for name, value in table.items() if name != CONTINUAL}
                reference = replay.get("strategy") in (NONE, ALL)
                ignored = [name for name in others if reference and name.startswith("replay.")]
                if any(others[name] != self.grid[name][0] for name in ignored):
                    continue  # the strategy ignores this option: run it once
                changes = common | {f"replay.{name}": value for name, value in replay.items()}
                run = self.run | self._continual(table)
                fixed = "budget" in replay or "budget_fraction" in replay or reference
                budgets: list[int | None] = [None] if fixed or not self.budgets else [*self.budgets]
                for budget in budgets:
                    own = {} if budget is None else {"replay.budget": budget, "replay.budget_fraction": None}
                    shown = {name: value for name, value in others.items() if name not in ignored}
                    yield _named(Config.make(run, changes | own, plugins=self.plugins), table, shown)


def _check_shapes(data: Mapping[str, Any], where: str) -> None:
    """Reject common mistakes of notation with the correct notation."""
    grid, strategies = data.get("grid"), data.get("strategies")
    for name, values in grid.items() if isinstance(grid, Mapping) else ():
        if isinstance(values, Mapping) and values:
            whole = f'"{name}.{next(iter(values))}"'
            raise InputError(f"{where}: grid.{name} is a table: quote dotted names, {whole} = [...]")
    for given in strategies if isinstance(strategies, list | tuple) else ():
        if not isinstance(given, str | Mapping):
            usual = 'names, or tables such as { strategy = "corrective", coordination_rounds = 4 }'
            raise InputError(f"{where}: strategies contains {given!r}: strategies must be {usual}")


def _named(config: Config, given: Mapping[str, Any], others: Mapping[str, Any]) -> Planned:
    """Name a run after the options in which it differs from the others."""
    replay = config.replay
    strategy = replay.strategy
    if is_coordinated(strategy):
        strategy += f"-{replay.coordination_rounds}r"
    more = {
        name: value
        for name, value in given.items()
        if name not in ("strategy", "coordination_rounds", "budget", "budget_fraction", CONTINUAL)
    }
    strategy += "".join(f"-{_written(name, value)}" for name, value in more.items())
    if CONTINUAL in given:
        strategy += "".join(
            f"-{_method(name, config.continual.options.get(name))}" for name in config.continual.methods
        )
    budget = f"{replay.budget_fraction:g}" if replay.budget_fraction else str(replay.budget)
    if replay.strategy in (NONE, ALL):
        budget = ""
    rest = [_written(name.rpartition(".")[2], value) for name, value in others.items()]
    name = "-".join(filter(None, [strategy, budget, *rest, f"seed{config.seed}"]))
    return Planned(name, " ".join([config.label(), *rest]), replay.budget_label() if budget else "", config)


def _method(name: str, options: Mapping[str, Any] | None) -> str:
    return _written(name, options) if options else name


def _written(name: str, value: Any) -> str:
    """Return an option and its value as part of a file name.

    >>> _written("rounds", 4), _written("path", "../x"), _written("options", {"starts": 3})
    ('rounds=4', 'path=x-97f7eb5d', 'options=starts-3-8806a704')
    """
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    safe = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:32]
    return f"{name}={safe}" if safe == text else f"{name}={safe}-{_digest(value)[:8]}"


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
