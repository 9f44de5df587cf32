"""Comparison of runs, by strategy and budget, seed by seed.

Runs form a group if their configurations agree in everything but strategy and budget, seed and sample of clients, and
what does not affect results (engine, trackers, baseline). Seeds differ more than strategies do, since each seed draws
its own clients. At each budget strategies are therefore compared on the seeds that all of them have; full history alone
may have fewer, because it takes longest. What a seed determines is the same for all strategies and cancels: with d_s
the difference at seed s, the interval is mean(d) ± t(0.975, n − 1) · sd(d) / √n.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from coreplay.report.charts import SeedStats, Style, styles
from coreplay.report.load import ANY, Finished, Key
from coreplay.runtime.strategy import ALL, NONE, strategies

LEVEL = 0.95
Runs = Mapping[Key, Finished]


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds with its interval; `word` is better, worse or unclear."""

    mean: float
    low: float | None
    high: float | None
    n: int
    word: str


def difference(
    ours: Mapping[Any, float], theirs: Mapping[Any, float], *, ratio: bool, lower_is_better: bool
) -> Difference | None:
    """Compare two strategies on the seeds that both have; None if they have none in common.

    With `ratio`, differences are those of logarithms, shown as relative changes: −0.1 is 10 % lower.

    >>> difference({0: 80.0, 1: 90.0}, {0: 100.0, 1: 100.0}, ratio=True, lower_is_better=True).word
    'unclear'
    >>> difference({0: 80.0, 1: 81.0}, {0: 100.0, 1: 100.0}, ratio=True, lower_is_better=True).word
    'better'
    """
    from scipy.stats import t

    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    pairs = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b) and (not ratio or min(a, b) > 0)]
    if not pairs:
        return None
    stats = SeedStats(tuple(math.log(a / b) if ratio else a - b for a, b in pairs))
    back = _change if ratio else float
    if stats.sd is None:
        return Difference(back(stats.mean), None, None, 1, "unclear")
    low = high = stats.mean
    if stats.sd:
        low, high = map(float, t.interval(LEVEL, stats.n - 1, stats.mean, stats.sd / math.sqrt(stats.n)))
    word = "unclear"
    if low > 0 or high < 0:
        word = "better" if (high < 0) == lower_is_better else "worse"
    return Difference(back(stats.mean), back(low), back(high), stats.n, word)


def _change(log: float) -> float:
    """Return a relative change from a logarithm; two seeds far apart give intervals beyond any float."""
    return math.expm1(min(log, 700.0))


class Group:
    """Runs that can be compared; `name` says how this group differs from the others."""

    def __init__(self, name: str, setting: Mapping[str, str], runs: Sequence[Finished]) -> None:
        self.name, self.setting, self.runs = name, setting, tuple(runs)
        summary, matrix = runs[0].run.summary, runs[0].run.matrix
        self.metric = str(summary["metric"])
        self.is_ratio = bool(summary["compared_by_ratio"])  # scores are compared by their ratio, as perplexities are
        self.lower_is_better = matrix.lower_is_better
        self.better = "lower" if matrix.lower_is_better else "higher"
        self.periods = int(matrix.values.shape[1])  # of the test sets
        self.has_forgetting = any(math.isfinite(run.forgetting) for run in runs)
        self.keys = sorted({run.key for run in runs})

    @cached_property
    def labels(self) -> list[str]:
        """The strategies: none first, full history last, the others in the order of `strategies`, then unknown ones."""
        order = {name: float(k) for k, name in enumerate(strategies())} | {ALL: math.inf}
        replays = {run.label: run.config.replay for run in self.runs}

        def place(label: str) -> tuple[float, int, str]:
            return order.get(replays[label].strategy, len(order)), replays[label].coordination_rounds, label

        return sorted(replays, key=place)

    @cached_property
    def budgets(self) -> list[str]:
        """The budgets in ascending order; fractions after numbers."""
        found = {run.budget: run.config.replay for run in self.runs if run.budget != ANY}
        return sorted(found, key=lambda name: (found[name].budget_fraction or 0.0, found[name].budget, name)) or [ANY]

    @cached_property
    def styles(self) -> Mapping[str, Style]:
        """The style of each strategy."""
        return styles(self.labels)

    @cached_property
    def _cells(self) -> dict[tuple[str, str], dict[Key, Finished]]:
        found: dict[tuple[str, str], dict[Key, Finished]] = {}
        for run in sorted(self.runs, key=lambda run: run.key):
            found.setdefault((run.label, run.budget), {})[run.key] = run
        return found

    def all_at(self, label: str, budget: str) -> Runs:
        """Return all runs of a strategy at a budget by seed; a strategy without a budget is there at every budget."""
        return self._cells.get((label, budget)) or self._cells.get((label, ANY), {})

    @cached_property
    def compared(self) -> Mapping[str, set[Key]]:
        """The seeds compared at each budget: those that all strategies have, or all seeds if there are none."""
        found = {}
        for budget in self.budgets:
            own = [set(runs) for label in self.labels if label != ALL and (runs := self.all_at(label, budget))]
            found[budget] = (set.intersection(*own) if own else set()) or set(self.keys)
        return found

    def at(self, label: str, budget: str) -> Runs:
        """Return the compared runs of a strategy at a budget by seed."""
        return {key: run for key, run in self.all_at(label, budget).items() if key in self.compared[budget]}

    def cells(self) -> list[tuple[str, str, Runs]]:
        """Return (budget, strategy, compared runs); a strategy without a budget occurs once, at budget `ANY`."""
        seeds = {**self.compared, ANY: set().union(*self.compared.values())}
        found: list[tuple[str, str, Runs]] = []
        for label, budget in product(self.labels, seeds):
            runs = {key: run for key, run in self._cells.get((label, budget), {}).items() if key in seeds[budget]}
            if runs:
                found.append((budget, label, runs))
        return found

    @cached_property
    def base_label(self) -> str:
        """The label of the runs without replay: `none`, or `none` with the continual methods that all runs have."""
        without = {run.label for run in self.runs if run.config.replay.strategy == NONE}
        methods = {(tuple(run.config.continual.methods), repr(run.config.continual.options)) for run in self.runs}
        return without.pop() if len(without) == len(methods) == 1 else NONE

    @property
    def base(self) -> Runs:
        """The runs without replay, by seed."""
        return self._cells.get((self.base_label, ANY), {})

    def changes(self, runs: Runs) -> dict[Key, float]:
        """Return the relative change of scores to no replay with the same seed, where that score is not 0."""
        return {
            key: ours.score / theirs.score - 1
            for key, (ours, theirs) in paired(runs, self.base).items()
            if theirs.score and math.isfinite(theirs.score)
        }


def paired(ours: Runs, theirs: Runs) -> dict[Key, tuple[Finished, Finished]]:
    """Return the runs of two strategies by seed, where both have it and were evaluated on the same test sets."""
    return {
        key: (run, theirs[key]) for key, run in ours.items() if key in theirs and run.missing == theirs[key].missing
    }


def group_runs(runs: Iterable[Finished]) -> list[Group]:
    """Put runs that can be compared into groups, and name each group by the options in which it differs."""
    found: dict[tuple[tuple[str, str], ...], list[Finished]] = {}
    for run in runs:
        found.setdefault(tuple(sorted(run.setting.items())), []).append(run)
    settings = [dict(setting) for setting in found]
    names = sorted({name for setting in settings for name in setting}, key=_importance)
    differing = [name for name in names if len({setting.get(name) for setting in settings}) > 1]
    return [
        Group(name, setting, tuple(members))
        for name, setting, members in zip(_names(settings, differing), settings, found.values(), strict=True)
    ]


def _importance(name: str) -> tuple[int, bool, str]:
    """Order options by how much they say about a group: the data, the task, then everything else."""
    parts = ("stream.source", "stream.options.path", "stream", "task", "federated")
    place = next((k for k, part in enumerate(parts) if name == part or name.startswith(f"{part}.")), len(parts))
    return place, name.startswith("stream.options.columns"), name


def _names(settings: list[dict[str, str]], differing: list[str]) -> list[str]:
    """Name each group by as few differing options as distinguish all groups, at least three; long values by their end.

    >>> _names([{"path": "a", "x": "1"}, {"path": "b" * 50, "x": "1"}], ["path"])[1]
    'path = …bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
    """
    names = [""] * len(settings)
    for many in range(min(3, len(differing)), len(differing) + 1):
        parts = [[(n, setting.get(n, "absent")) for n in differing[:many]] for setting in settings]
        names = [", ".join(f"{n} = {v if len(v) <= 40 else '…' + v[-39:]}" for n, v in each) for each in parts]
        if len(set(names)) == len(names):
            more = f", and {len(differing) - many} more" if many < len(differing) else ""
            return [name + more for name in names]
    return [", ".join(f"{n} = {setting.get(n, 'absent')}" for n in differing) for setting in settings]
