"""Tables: once as numbers (CSV), once as a person reads them (Markdown, and HTML in the page)."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from coreplay.report.gather import ANY
from coreplay.report.groups import Group, paired
from coreplay.report.numbers import LEVEL, Difference, Spread, difference
from coreplay.report.texts import column, decimals


@dataclass(frozen=True)
class Table:
    """A table: `records` hold the numbers, `rows` the same as texts under `columns`; `by` can be chosen in the page."""

    name: str
    title: str
    reading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[dict[str, Any], ...]
    by: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = ["| " + " | ".join(map(cell, self.columns)) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in self.rows]
        return f"{self.reading}\n\n" + "\n".join(lines) + "\n"


def cell(text: str) -> str:
    r"""Return a text as Markdown shows it.

    >>> cell("a | b_c")
    'a \\| b\\_c'
    """
    for sign in ("\\", "|", "<", "`", "*", "_", "[", "]"):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def csv_text(records: Iterable[Mapping[str, Any]]) -> str:
    r"""Return rows as CSV; a column that a row does not have stays empty.

    >>> csv_text([{"a": 1}, {"a": 2, "b": None}])
    'a,b\n1,\n2,\n'
    """
    rows = list(records)
    names = list(dict.fromkeys(name for row in rows for name in row))
    target = io.StringIO()
    writer = csv.DictWriter(target, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def results(group: Group) -> Table:
    """Make the table of results: a row a strategy and budget."""
    heads, spreads, records = [], [], []
    for budget, label, runs in group.once():
        members = list(runs.values())
        figure, lost = Spread.of(r.figure for r in members), Spread.of(r.forgetting for r in members)
        change, seconds = Spread.of(group.changes(runs).values()), Spread.of(r.seconds for r in members)
        record: dict[str, Any] = {"strategy": label, "budget": budget}
        for name, spread in ((group.metric, figure), ("relative_change", change), ("forgetting", lost)):
            record |= {name: _or_none(spread), f"{name}_sd": spread.sd}
        lacking = sum(bool(r.missing) for r in members)
        records.append(record | {"seeds": len(members), "lacking_test_sets": lacking, "seconds": seconds.mean})
        heads.append((label, budget, "*" if any(r.missing for r in members) else "", str(len(members))))
        spreads.append((figure, change, lost, seconds))
    figures, changes, losses, times = (list(each) for each in zip(*spreads, strict=True))
    columns = (_shown(figures, 4), [_one(c, "+.1%") for c in changes], _shown(losses, 3), column(_means(times), 3))
    rows = [
        (label, budget, figure + mark, change, loss, seeds, seconds)
        for (label, budget, mark, seeds), figure, change, loss, seconds in zip(heads, *columns, strict=True)
    ]
    better = "lower" if group.lower_is_better else "higher"
    return Table(
        "results",
        "Results",
        f"{group.metric.capitalize()} is of the model after the last period on the test sets of all periods ({better} "
        "is better), the change is relative to no replay at the same seed, forgetting is how much worse the model is "
        "than the best earlier one on the test sets of the periods before the last. Mean ± standard deviation over "
        "seeds.",
        ("strategy", "budget", group.metric, "change to none", "forgetting", "seeds", "seconds"),
        tuple(rows),
        tuple(records),
    )


def _or_none(spread: Spread) -> float | None:
    return spread.mean if spread.n else None


def _means(spreads: Iterable[Spread]) -> list[float]:
    return [spread.mean for spread in spreads]


def _shown(spreads: Sequence[Spread], digits: int) -> list[str]:
    """Return means and standard deviations, all with the decimals that give the largest mean so many digits."""
    form = f".{decimals(_means(spreads), digits)}f"
    return [_one(spread, form) for spread in spreads]


def _one(spread: Spread, form: str) -> str:
    if not spread.n:
        return "–"
    mean = format(spread.mean, form)
    return mean if spread.sd is None else f"{mean} ± {format(spread.sd, form.lstrip('+'))}"


def differences(group: Group) -> Table | None:
    """Make the table of differences between strategies, seed by seed, at each budget."""
    pairwise: list[tuple[str, str, str, Difference]] = []
    for budget in group.budgets:
        present = [label for label in group.labels if group.at(label, budget)]
        for other, label in combinations(present, 2):
            pairs = paired(group.at(label, budget), group.at(other, budget))
            found = difference(
                {key: ours.figure for key, (ours, _) in pairs.items()},
                {key: theirs.figure for key, (_, theirs) in pairs.items()},
                ratio=group.is_ratio,
                lower_is_better=group.lower_is_better,
            )
            if found is not None:
                pairwise.append((budget, label, other, found))
    if not pairwise:
        return None
    means = [found.mean for *_, found in pairwise]
    form = "+.1%" if group.is_ratio else f"+.{decimals(means, 3)}f"
    rows, records = [], []
    for budget, label, other, found in pairwise:
        records.append({"budget": budget, "strategy": label, "against": other} | found.__dict__)
        interval = "–"
        if found.low is not None and found.high is not None:
            interval = f"{format(found.low, form)} to {format(found.high, form)}"
        rows.append((budget, label, other, format(found.mean, form), interval, str(found.n), found.word))
    what = "relative change" if group.is_ratio else "difference"
    how = " (of logarithms, so it may differ a little from the mean of the changes)" if group.is_ratio else ""
    return Table(
        "differences",
        "Differences between strategies, seed by seed",
        f"The mean {what} of {group.metric}{how} over the seeds that both strategies have, with its {LEVEL:.0%} "
        "interval (Student's t). The word is about the first strategy: better or worse if the interval leaves out 0, "
        "else unclear. Of strategies that do not differ, about one pair in 20 looks as if they did.",
        ("budget", "strategy", "against", what, f"{LEVEL:.0%} interval", "seeds", "the first is"),
        tuple(rows),
        tuple(records),
        by="budget" if len(group.budgets) > 1 and group.budgets != [ANY] else "",
    )
