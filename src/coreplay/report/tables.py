"""Tables: numbers for CSV, and the same formatted for Markdown and the page."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from coreplay.report.charts import SeedStats
from coreplay.report.compare import LEVEL, Group, difference, paired
from coreplay.report.html import column, decimals


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


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; cells are escaped."""
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(list(columns)), *lines[1:]]) + "\n"


def cell(text: str) -> str:
    r"""Escape a text for Markdown.

    >>> cell("a | b_c")
    'a \\| b\\_c'
    """
    for sign in ("\\", "|", "<", "`", "*", "_", "[", "]"):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def csv_text(records: Iterable[Mapping[str, Any]]) -> str:
    r"""Return records as CSV; a column that a record does not have stays empty.

    >>> csv_text([{"a": 1}, {"a": 2, "b": None}])
    'a,b\n1,\n2,\n'
    """
    rows = list(records)
    target = io.StringIO()
    writer = csv.DictWriter(target, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def results(group: Group) -> Table:
    """Make the table of results, one row per strategy and budget."""
    heads, stats, records = [], [], []
    for budget, label, runs in group.cells():
        members = list(runs.values())
        score, lost = SeedStats.of(r.score for r in members), SeedStats.of(r.forgetting for r in members)
        change, seconds = (
            SeedStats.of(group.changes(runs).values()),
            SeedStats.of(sum(r.run.summary["seconds"].values()) for r in members),
        )
        record: dict[str, Any] = {"strategy": label, "budget": budget}
        for name, each in ((group.metric, score), ("relative_change", change), ("forgetting", lost)):
            record |= {name: each.mean if each.n else None, f"{name}_sd": each.sd}
        lacking = sum(bool(r.missing) for r in members)
        records.append(record | {"seeds": len(members), "lacking_test_sets": lacking, "seconds": seconds.mean})
        heads.append((label, budget, "*" if lacking else "", str(len(members))))
        stats.append((score, change, lost, seconds))
    formats = [f".{decimals([each[k].mean for each in stats], digits)}f" for k, digits in ((0, 4), (2, 3))]
    rows = tuple(
        (label, budget, _shown(score, formats[0]) + mark, _shown(change, "+.1%"), _shown(lost, formats[1]), seeds, took)
        for (label, budget, mark, seeds), (score, change, lost, _), took in zip(
            heads, stats, column([seconds.mean for *_, seconds in stats], 3), strict=True
        )
    )
    return Table(
        "results",
        "Results",
        f"{group.metric.capitalize()} is that of the model after the last period on the test sets of all periods "
        f"({group.better} is better). The change is relative to no replay with the same seed. Forgetting is how much "
        "worse the model is than the best earlier one on the test sets of all periods but the last. Mean ± standard "
        "deviation over seeds.",
        ("strategy", "budget", group.metric, "change to none", "forgetting", "seeds", "seconds"),
        rows,
        tuple(records),
    )


def _shown(stats: SeedStats, form: str) -> str:
    if not stats.n:
        return "–"
    mean = format(stats.mean, form)
    return mean if stats.sd is None else f"{mean} ± {format(stats.sd, form.lstrip('+'))}"


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
