"""A group: the runs that can be compared, by strategy and budget.

Seeds differ more than strategies do, for each draws its own clients. So at each budget strategies are compared on the
seeds that all of them have; full history alone may have fewer, because it takes longest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

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
        return bool(self.runs[0].run.summary["compared_by_ratio"])

    @property
    def periods(self) -> int:
        """How many test periods there are."""
        return int(self.runs[0].run.matrix.values.shape[1])

    @cached_property
    def keys(self) -> list[Key]:
        """The seeds, each with its sample of clients."""
        return sorted({run.key for run in self.runs})

    @cached_property
    def labels(self) -> list[str]:
        """The strategies: none first, everything last, the others as `strategies` lists them, unknown ones after."""
        known = [NONE, *(name for name in strategies() if name not in (NONE, ALL))]
        order = {name: k for k, name in enumerate(known)} | {ALL: len(known) + 1}
        replays = {run.label: run.config.replay for run in self.runs}
        found = {
            label: (order.get(replay.strategy, len(known)), replay.coordination_rounds)
            for label, replay in replays.items()
        }
        return sorted(found, key=lambda label: (found[label], label))

    @cached_property
    def budgets(self) -> list[str]:
        """The budgets, small ones first; shares after numbers."""
        found = {run.budget: run.config.replay for run in self.runs if not run.is_reference}
        return sorted(found, key=lambda name: (found[name].budget_fraction or 0.0, found[name].budget, name)) or [ANY]

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

    def _all(self, label: str, budget: str) -> Runs:
        return self._by_place.get((label, budget)) or self._by_place.get((label, ANY), {})

    @cached_property
    def compared(self) -> dict[str, set[Key]]:
        """The seeds on which strategies are compared at each budget: those that all have, or all if there is none."""
        found = {}
        for budget in self.budgets:
            own = [set(runs) for label in self.labels if label != ALL and (runs := self._all(label, budget))]
            found[budget] = set.intersection(*own) if own else set()
            found[budget] = found[budget] or set(self.keys)
        return found

    def at(self, label: str, budget: str) -> Runs:
        """Return the compared runs of a strategy at a budget by seed; one that has no budget is there at every one."""
        return {key: run for key, run in self._all(label, budget).items() if key in self.compared[budget]}

    def once(self) -> list[tuple[str, str, Runs]]:
        """Return (budget, strategy, runs); a strategy without a budget comes once, under the word for any."""
        seeds = self.compared | {ANY: set().union(*self.compared.values())}
        order = {(label, budget): None for label in self.labels for budget in (*self.budgets, ANY)}
        found = [
            (budget, label, {key: run for key, run in runs.items() if key in seeds[budget]})
            for label, budget in order
            if (runs := self._by_place.get((label, budget)))
        ]
        return [(budget, label, runs) for budget, label, runs in found if runs]

    def lacking(self) -> str:
        """Say which strategies lack which seeds, and what follows; nothing if all are there."""
        said = []
        for budget in self.budgets:
            missing = {
                label: [seed for seed, _ in self.keys if seed not in {own for own, _ in runs}]
                for label in self.labels
                if (runs := self._all(label, budget))
            }
            texts = [f"{label} lacks seed {', '.join(map(str, seeds))}" for label, seeds in missing.items() if seeds]
            if texts:
                where = "" if budget == ANY else f"at budget {budget} "
                said.append(f"{where}{'; '.join(texts)}; compared are {len(self.compared[budget])} of {len(self.keys)}")
        rule = "Strategies are compared on the seeds that all of them have, full history apart"
        return f"{rule}: {'. '.join(said)}." if said else ""

    @property
    def base(self) -> Runs:
        """The runs without replay, by seed."""
        return self._by_place.get((NONE, ANY), {})

    def changes(self, runs: Runs) -> dict[Key, float]:
        """Return the change of the figure relative to no replay at the same seed, where that is a number but 0."""
        return {
            key: ours.figure / theirs.figure - 1
            for key, (ours, theirs) in paired(runs, self.base).items()
            if theirs.figure and isfinite(theirs.figure)
        }


def paired(ours: Runs, theirs: Runs) -> dict[Key, tuple[Finished, Finished]]:
    """Return the runs of two strategies by seed, where both have it and were measured on the same test sets."""
    return {
        key: (run, theirs[key]) for key, run in ours.items() if key in theirs and run.missing == theirs[key].missing
    }


def grouped(runs: Iterable[Finished]) -> list[Group]:
    """Put runs that can be compared together, and name each group by what sets it apart."""
    found: dict[tuple[tuple[str, str], ...], list[Finished]] = {}
    for run in runs:
        found.setdefault(tuple(sorted(run.setting().items())), []).append(run)
    settings = [dict(setting) for setting in found]
    names = sorted({name for setting in settings for name in setting}, key=_importance)
    differing = [name for name in names if len({setting.get(name) for setting in settings}) > 1]
    return [
        Group(name, setting, tuple(members))
        for name, setting, members in zip(_names(settings, differing), settings, found.values(), strict=True)
    ]


def _importance(name: str) -> tuple[int, bool, str]:
    """Order what groups differ in by what says most of them: the data, the task, then everything else."""
    parts = ("stream.source", "stream.options.path", "stream", "task", "federated")
    place = next((k for k, part in enumerate(parts) if name == part or name.startswith(f"{part}.")), len(parts))
    return place, name.startswith("stream.options.columns"), name


def _names(settings: list[dict[str, str]], differing: list[str]) -> list[str]:
    """Name each group by as few of its differences as tell all groups apart, at least three."""
    for many in range(3, len(differing) + 1):
        found = [
            ", ".join(f"{n} = {_ending(setting.get(n, 'absent'))}" for n in differing[:many]) for setting in settings
        ]
        if len(set(found)) == len(found):
            more = len(differing) - many
            return [f"{name}, and {more} more" if more else name for name in found]
    return [", ".join(f"{n} = {setting.get(n, 'absent')}" for n in differing) for setting in settings]


def _ending(value: str, longest: int = 40) -> str:
    """Return a value, or the end of a long one, which is what tells paths apart.

    >>> _ending("12"), len(_ending("/a/long/way/to/some/place/where/the/stream/is.jsonl.gz"))
    ('12', 40)
    """
    return value if len(value) <= longest else "…" + value[-longest + 1 :]
