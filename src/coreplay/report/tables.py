"""What a comparison shows: the tables of results and differences, and the findings and their limits in sentences."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import isfinite
from statistics import fmean
from typing import Any

from coreplay.report.charts import SeedStats
from coreplay.report.compare import LEVEL, Group, difference, paired
from coreplay.report.load import ANY
from coreplay.report.text import column, decimals, first_few, markdown_table
from coreplay.runtime.strategy import ALL

RANDOM = ("naive_uniform", "approximate_uniform", "fixed_proportion")


@dataclass(frozen=True)
class Table:
    """A table: `records` hold the numbers, `rows` the same as text under `columns`."""

    name: str
    title: str
    reading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[dict[str, Any], ...]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        return f"{self.reading}\n\n{markdown_table(self.columns, self.rows)}"


def results(group: Group) -> Table:
    """Make the table of results, one row per strategy and budget."""
    metric, records = group.metric, []
    for budget, label, runs in group.cells():
        members = list(runs.values())
        values = {
            metric: [run.score for run in members],
            "relative_change": group.changes(runs).values(),
            "forgetting": [run.forgetting for run in members],
        }
        record: dict[str, Any] = {"strategy": label, "budget": budget}
        for name, stats in ((name, SeedStats.of(found)) for name, found in values.items()):
            record |= {name: stats.mean if stats.n else None, f"{name}_sd": stats.sd}
        record |= {"seeds": len(members), "lacking_test_sets": sum(bool(run.missing) for run in members)}
        records.append(record | {"seconds": fmean(sum(run.run.summary["seconds"].values()) for run in members)})
    places = {
        name: decimals([record[name] for record in records], digits)
        for name, digits in ((metric, 4), ("forgetting", 3))
    }
    rows = []
    for record, seconds in zip(records, column([record["seconds"] for record in records], 3), strict=True):
        score = _shown(record, metric, f".{places[metric]}f") + ("*" if record["lacking_test_sets"] else "")
        change, lost = (
            _shown(record, "relative_change", "+.1%"),
            _shown(record, "forgetting", f".{places['forgetting']}f"),
        )
        rows.append((record["strategy"], record["budget"], score, change, lost, str(record["seeds"]), seconds))
    return Table(
        "results",
        "Results",
        f"{metric.capitalize()} is that of the model after the last period on the test sets of all periods "
        f"({group.better} is better). The change is relative to no replay with the same seed. Forgetting is how much "
        "worse the model is than the best earlier one on the test sets of all periods but the last. Mean ± standard "
        "deviation over seeds.",
        ("strategy", "budget", metric, "change to none", "forgetting", "seeds", "seconds"),
        tuple(rows),
        tuple(records),
    )


def _shown(record: dict[str, Any], name: str, form: str) -> str:
    mean, sd = record[name], record[f"{name}_sd"]
    if mean is None:
        return "–"
    return format(mean, form) + ("" if sd is None else f" ± {format(sd, form.lstrip('+'))}")


def differences(group: Group) -> Table | None:
    """Make the table of differences between strategies, seed by seed, at each budget."""
    found = []
    for budget in group.budgets:
        present = [label for label in group.labels if group.at(label, budget)]
        for other, label in combinations(present, 2):
            pairs = paired(group.at(label, budget), group.at(other, budget))
            ours, theirs = ({key: pair[k].score for key, pair in pairs.items()} for k in range(2))
            gap = difference(ours, theirs, ratio=group.is_ratio, lower_is_better=group.lower_is_better)
            if gap is not None:
                found.append((budget, label, other, gap))
    if not found:
        return None
    form = "+.1%" if group.is_ratio else f"+.{decimals([gap.mean for *_, gap in found], 3)}f"
    rows, records = [], []
    for budget, label, other, gap in found:
        records.append({"budget": budget, "strategy": label, "against": other} | asdict(gap))
        ends = (gap.low, gap.high)
        interval = "–" if None in ends else " to ".join(format(end, form) for end in ends)
        rows.append((budget, label, other, format(gap.mean, form), interval, str(gap.n), gap.word))
    what = "relative change" if group.is_ratio else "difference"
    how = " (of logarithms, which can differ slightly from the mean of the changes)" if group.is_ratio else ""
    return Table(
        "differences",
        "Differences between strategies, seed by seed",
        f"The mean {what} of {group.metric}{how} over the seeds that both strategies have, with its {LEVEL:.0%} "
        "confidence interval (Student's t). The last column is about the first strategy: better or worse if the "
        "interval excludes 0, otherwise unclear. Among strategies that do not differ, about one pair in 20 appears to.",
        ("budget", "strategy", "against", what, f"{LEVEL:.0%} interval", "seeds", "the first is"),
        tuple(rows),
        tuple(records),
    )


def summarize(group: Group) -> str:
    """Summarize a comparison; the verdicts follow from the scores of each seed, not from their means."""
    found = [text for budget in group.budgets for text in _at(group, budget)]
    caution = "One seed cannot separate effects from chance."
    if (many := len(group.keys)) > 1:
        caution = f"With {many} seeds, check the intervals in the table of differences before reading these as effects."
    return f"Findings: {'; '.join(found)}. {caution}" if found else caution


def notes(group: Group) -> list[str]:
    """Name what limits a comparison: missing seeds, diverged runs and missing test sets."""
    return [text for text in (missing_seeds(group), diverged(group), missing_tests(group)) if text]


def missing_seeds(group: Group) -> str:
    """Name the strategies that lack seeds, and how many seeds are compared; empty if none is missing."""
    found = []
    for budget in group.budgets:
        texts = []
        for label in group.labels:
            seeds = {seed for seed, _ in group.all_at(label, budget)}
            missing = [str(seed) for seed, _ in group.keys if seed not in seeds]
            if seeds and missing:
                texts.append(f"{label} lacks seed{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
        if texts:
            where = "" if budget == ANY else f"at budget {budget} "
            count = f"{len(group.compared[budget])} of {len(group.keys)} seeds are compared"
            found.append(f"{where}{'; '.join(texts)}; {count}")
    rule = "Strategies are compared on the seeds that all of them have, except full_history, which may have fewer"
    return f"{rule}: {'. '.join(found)}." if found else ""


def diverged(group: Group) -> str:
    """Name the runs whose score is not finite."""
    names = [run.name for run in group.runs if not isfinite(run.score)]
    return f"Diverged and excluded from the means: {', '.join(names)}." if names else ""


def missing_tests(group: Group) -> str:
    """Name the runs whose scores lack the test sets of some clients."""
    found = []
    for run in group.runs:
        after: dict[tuple[str, ...], list[str]] = {}
        for period, clients in run.run.summary["missing"].items():
            after.setdefault(tuple(clients), []).append(str(int(period) + 1))
        for clients, periods in after.items():
            found.append(f"{run.name} lacks {first_few(clients, 5)} after period {', '.join(periods)}")
    rule = (
        "Some scores lack the test sets of clients that did not answer. Tables mark such scores after the last period "
        "with *, and runs are compared only if they lack the same clients"
    )
    return f"{rule}: {'; '.join(found)}." if found else ""


def _at(group: Group, budget: str) -> list[str]:
    """Return the findings at a budget."""
    where = f" with a budget of {budget}" if len(group.budgets) > 1 else ""
    better: dict[str, list[str]] = {}
    unclear: list[str] = []
    worse: list[str] = []
    for label in group.labels:
        gaps = _gaps(group, label, group.base_label, budget)
        if label != group.base_label and gaps:
            helps = better.setdefault(_seeds(gaps), []) if max(gaps) < 0 else worse if min(gaps) >= 0 else unclear
            helps.append(label)
    found = [f"better than no replay {seeds}{where}: {_listed(labels)}" for seeds, labels in better.items()]
    found += [f"seeds disagree{where}: {_listed(unclear)}"] if unclear else []
    found += [f"not better than no replay{where}: {_listed(worse)}"] if worse else []
    random = [label for label in RANDOM if group.at(label, budget)]
    chosen = [
        label for label in group.labels if label not in (group.base_label, ALL, *RANDOM) and group.at(label, budget)
    ]
    if random and chosen:
        gaps_of = {label: [_gaps(group, label, other, budget) for other in random] for label in chosen}
        best = [label for label, lists in gaps_of.items() if all(each and max(each) < 0 for each in lists)]
        names = _listed(best) if best else "no gradient-based selection"
        found.append(f"better than {_listed(random)} {_seeds(gaps_of[chosen[0]][0])}{where}: {names}")
    return found


def _seeds(gaps: Sequence[float]) -> str:
    return f"in each of {len(gaps)} seeds" if len(gaps) > 1 else "in the only seed"


def _gaps(group: Group, label: str, other: str, budget: str) -> list[float]:
    """Return the difference to another strategy per seed, below 0 where better, unless the other diverged."""
    pairs = paired(group.at(label, budget), group.at(other, budget)).values()
    sign = 1 if group.lower_is_better else -1
    return [sign * (ours.score - theirs.score) for ours, theirs in pairs if isfinite(theirs.score)]


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
