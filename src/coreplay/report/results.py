"""The figures about how good models are: the paper's figures 2 and 3, and what lies behind them.

Each function makes one figure of a group, or None if the group's runs don't have what it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.federated.strategy import NONE
from coreplay.report.charts import Axis, Bars, Figure, Heatmap, Lines, Panel, Points, Series
from coreplay.report.gather import Key
from coreplay.report.groups import Group, Runs, paired
from coreplay.report.numbers import Spread

Floats = NDArray[np.float64]

Measure = Callable[[Runs], dict[Key, float]]


def relative_change(group: Group) -> Figure | None:
    """Draw the change to no replay by budget and strategy (the paper's figure 2a)."""
    if not group.base:
        return None
    better = "Lower" if group.lower_is_better else "Higher"
    return Figure(
        "relative-change",
        f"Change of {group.metric} relative to no replay",
        f"{better} is better. A bar is the mean over seeds of the model after the last period, measured on the test "
        "sets of all periods and divided by the run without replay of the same seed. The line on it is the standard "
        "deviation, a dot is one seed.",
        (_bars(group, Axis(f"change of {group.metric}", percent=True, signed=True), group.changes, skip=NONE),),
    )


def forgetting(group: Group) -> Figure | None:
    """Draw forgetting by budget and strategy (the paper's figure 2b)."""
    if not any(np.isfinite(run.forgetting) for run in group.runs):
        return None
    return Figure(
        "forgetting",
        "Forgetting",
        f"Lower is better. Forgetting is how much worse the last model's {group.metric} is than that of the best "
        "earlier model on the same test set, as a mean over all periods but the last, which no earlier model was "
        "trained on. Bars, lines and dots as above.",
        (_bars(group, Axis(f"forgetting ({group.metric})"), lambda runs: {k: r.forgetting for k, r in runs.items()}),),
    )


def _bars(group: Group, y: Axis, measure: Measure, skip: str = "") -> Panel:
    series = tuple(
        Series.of(label, group.style(label), {b: list(measure(group.at(label, b)).values()) for b in group.budgets})
        for label in group.labels
        if label != skip
    )
    return Panel(Bars(Axis("budget"), y, tuple(group.budgets), tuple(s for s in series if s.x)))


def by_test_period(group: Group) -> Figure | None:
    """Draw the last model on each period's test set (the paper's figure 3)."""
    if not group.base:
        return None
    final = {key: run.run.matrix.values[-1] for key, run in group.base.items()}
    whole = {key: np.full(group.periods, run.figure) for key, run in group.base.items()}
    zero = any((values == 0).any() for values in final.values())
    missing = " A period on which no replay gets 0 has no point in the view relative to it." if zero else ""
    y = Axis(f"change of {group.metric}", percent=True, signed=True)
    panels = []
    for what, base in (("no replay on all periods (as the paper)", whole), ("no replay on the same period", final)):
        for budget in group.budgets:
            lines = []
            for label in group.labels:
                runs = paired(group.at(label, budget), group.base)
                changes = [_relative(run.run.matrix.values[-1], base[key]) for key, (run, _) in runs.items()]
                lines.append(line(group, label, changes))
            panels.append(Panel(Lines(Axis("test period"), y, there(lines)), {"budget": budget, "relative to": what}))
    return Figure(
        "test-periods",
        "The last model on the test set of each period",
        f"{'Lower' if group.lower_is_better else 'Higher'} is better. Old periods are on the left: a line that "
        f"{'rises' if group.lower_is_better else 'falls'} to the left forgets. Means over seeds, each relative to the "
        "run without replay of the same seed." + missing,
        tuple(panels),
    )


def _relative(values: Floats, base: Floats) -> Floats:
    """Return the change to a base; there is none to 0, or to what diverged."""
    fits = np.isfinite(base) & (base != 0)
    return np.where(fits, values / np.where(fits, base, 1.0) - 1, np.nan)


def forgetting_by_period(group: Group) -> Figure | None:
    """Draw the forgetting of the last model on each period's test set (the paper's figure in its appendix)."""
    if not any(np.isfinite(run.forgetting) for run in group.runs):
        return None
    panels = []
    for budget in group.budgets:
        lines = [
            line(group, label, [run.run.matrix.forgetting()[-1] for run in group.at(label, budget).values()])
            for label in group.labels
        ]
        axis = Axis(f"forgetting ({group.metric})")
        panels.append(Panel(Lines(Axis("test period"), axis, there(lines)), {"budget": budget}))
    return Figure(
        "test-periods-forgetting",
        "Forgetting by test period",
        f"Lower is better. How much worse the last model's {group.metric} on a period's test set is than that of the "
        "best earlier model; at 0 or below nothing of the period is forgotten. The last period is new to the last "
        "model alone. Means over seeds.",
        tuple(panels),
    )


def trade_off(group: Group) -> Figure | None:
    """Draw forgetting against performance, a point a strategy and budget."""
    if not any(np.isfinite(run.forgetting) for run in group.runs):
        return None
    relative = bool(group.base)
    series = []
    for label in group.labels:
        x: list[Spread] = []
        y: list[Spread] = []
        notes: list[str] = []
        for budget in group.budgets:
            runs = group.at(label, budget)
            figures = group.changes(runs) if relative else {key: run.figure for key, run in runs.items()}
            across, up = Spread.of(figures.values()), Spread.of(runs[key].forgetting for key in figures)
            if across.n and up.n:
                x, y, notes = [*x, across], [*y, up], [*notes, f"budget {budget}"]
            if any(run.is_reference for run in runs.values()):
                notes = ["any budget"] * len(notes)
                break
        if x:
            series.append(Series(label, group.style(label), tuple(s.mean for s in x), tuple(y), tuple(x), tuple(notes)))
    across_axis = (
        Axis(f"change of {group.metric} relative to no replay", percent=True, signed=True)
        if relative
        else Axis(group.metric)
    )
    corner = "left" if group.lower_is_better else "right"
    return Figure(
        "trade-off",
        "Forgetting against performance",
        f"The best corner is the lower {corner}: good on all periods and nothing forgotten. A point is a strategy at a "
        "budget, joined from the smallest budget to the largest; the lines through it are standard deviations over "
        "seeds.",
        (Panel(Points(across_axis, Axis(f"forgetting ({group.metric})"), tuple(series), joined=True)),),
    )


def matrix(group: Group) -> Figure:
    """Draw the figure of the model after each period on each test period."""
    panels = []
    means = [np.mean([run.run.matrix.values for run in runs.values()], axis=0) for _, _, runs in group.once()]
    known = np.concatenate([values[np.isfinite(values)] for values in means])
    limits = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    for (budget, label, _), values in zip(group.once(), means, strict=True):
        after = tuple(str(t + 1) for t in range(len(values)))
        tests = tuple(str(t + 1) for t in range(values.shape[1]))
        chart = Heatmap(
            Axis("test period"),
            Axis("after period"),
            Axis(group.metric),
            tests,
            after,
            tuple(map(tuple, values.tolist())),
            limits,
        )
        panels.append(Panel(chart, {"strategy": label, "budget": budget}))
    return Figure(
        "matrix",
        f"{group.metric.capitalize()} of every model on every period",
        "A row is the model after a period, a column a test set; means over seeds. Down a column you see how a period "
        "is learnt and then forgotten: left of the diagonal are periods that the model has seen, right of it those to "
        "come.",
        tuple(panels),
    )


def over_time(group: Group) -> Figure:
    """Draw the figure on all test sets after each training period."""
    panels = []
    for budget in group.budgets:
        lines = [
            line(group, label, [r.run.matrix.all_period for r in group.at(label, budget).values()])
            for label in group.labels
        ]
        panels.append(Panel(Lines(Axis("after period"), Axis(group.metric), there(lines)), {"budget": budget}))
    return Figure(
        "over-time",
        f"{group.metric.capitalize()} on the test sets of all periods, after each period",
        f"{'Lower' if group.lower_is_better else 'Higher'} is better. All test sets count from the start, also of "
        "periods that a model has not seen yet. Means over seeds.",
        tuple(panels),
    )


def line(group: Group, label: str, rows: Sequence[NDArray[Any]]) -> Series:
    """Make a line of rows of figures, one a seed, numbered from 1."""
    columns: Mapping[float, Sequence[float]] = {t + 1: column for t, column in enumerate(np.array(rows).T.tolist())}
    return Series.of(label, group.style(label), columns)


def there(lines: Sequence[Series]) -> tuple[Series, ...]:
    """Return the series that have a point."""
    return tuple(line for line in lines if line.x)
