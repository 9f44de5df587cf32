"""A group: the runs that can be compared, by strategy and budget."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from coreplay.federated.strategy import ALL, NONE, strategies
from coreplay.report.charts import Style, styles
from coreplay.report.gather import ANY, Finished, Key

Runs = Mapping[Key, Finished]


@dataclass(frozen=True)
class Group:
    """Runs that differ in strategy, budget, seed and sample of clients alone; `name` says how groups differ."""

    name: str
    setting: dict[str, str]
    runs: tuple[Finished, ...]

    @property
    def metric(self) -> str:
        """What is measured."""
        return str(self.runs[0].run.summary["metric"])

    @property
    def lower_is_better(self) -> bool:
        """Whether smaller figures are better."""
        return self.runs[0].run.matrix.lower_is_better

    @property
    def is_ratio(self) -> bool:
        """Whether figures are compared by their ratio, as perplexities are."""
        return self.runs[0].run.matrix.geometric

    @property
    def periods(self) -> int:
        """How many test periods there are."""
        return int(self.runs[0].run.matrix.totals.shape[1])

    @cached_property
    def keys(self) -> list[Key]:
        """The seeds, each with its sample of clients."""
        return sorted({run.key for run in self.runs})

    @cached_property
    def labels(self) -> list[str]:
        """The strategies: no replay first, everything last, the others as `strategies` lists them."""
        order = {name: k for k, name in enumerate([NONE, *(n for n in strategies() if n not in (NONE, ALL)), ALL])}
        found = {run.label: (order[run.config.replay.strategy], run.config.replay.rounds) for run in self.runs}
        return sorted(found, key=lambda label: (found[label], label))

    @cached_property
    def budgets(self) -> list[str]:
        """The budgets, small ones first; shares after numbers."""
        found = {run.budget: run.config.replay for run in self.runs if not run.is_reference}
        return sorted(found, key=lambda name: (found[name].share or 0.0, found[name].budget, name)) or [ANY]

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], dict[Key, Finished]]:
        found: dict[tuple[str, str], dict[Key, Finished]] = {}
        for run in sorted(self.runs, key=lambda run: run.key):
            found.setdefault((run.label, run.budget), {})[run.key] = run
        return found

    @cached_property
    def _styles(self) -> dict[str, Style]:
        return styles(self.labels)

    def style(self, label: str) -> Style:
        """How a strategy looks."""
        return self._styles[label]

    def at(self, label: str, budget: str) -> Runs:
        """Return the runs of a strategy at a budget by seed; a strategy that has no budget is there at every one."""
        return self._by_place.get((label, budget)) or self._by_place.get((label, ANY), {})

    def once(self) -> list[tuple[str, str, Runs]]:
        """Return (budget, strategy, runs); a strategy without a budget comes once, under the word for any."""
        order = {(label, budget): None for label in self.labels for budget in (*self.budgets, ANY)}
        return [
            (budget, label, self._by_place[label, budget])
            for label, budget in order
            if (label, budget) in self._by_place
        ]

    @property
    def base(self) -> Runs:
        """The runs without replay, by seed."""
        return self.at(NONE, ANY)

    def changes(self, runs: Runs) -> dict[Key, float]:
        """Return the change of the figure relative to no replay at the same seed, where there is such a run."""
        return {key: run.figure / self.base[key].figure - 1 for key, run in runs.items() if key in self.base}


def grouped(runs: Iterable[Finished]) -> list[Group]:
    """Put runs that can be compared together, and name each group by what sets it apart."""
    found: dict[tuple[tuple[str, str], ...], list[Finished]] = {}
    for run in runs:
        found.setdefault(tuple(sorted(run.setting().items())), []).append(run)
    settings = [dict(setting) for setting in found]
    names = sorted({name for setting in settings for name in setting})
    differing = [name for name in names if len({setting.get(name) for setting in settings}) > 1]
    return [
        Group(", ".join(f"{name} = {setting.get(name, 'absent')}" for name in differing), setting, tuple(members))
        for setting, members in zip(settings, found.values(), strict=True)
    ]
