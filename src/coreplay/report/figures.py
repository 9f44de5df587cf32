"""The figures of a report; `FIGURES` maps names to functions from a group to a figure, or to None without data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.report.charts import Axis, Bars, Figure, Heatmap, Lines, Panel, SeedStats, Series, Style, style
from coreplay.report.compare import Group, Runs, paired
from coreplay.report.load import ANY, Finished

Floats = NDArray[np.float64]
Content = tuple[str, str, Sequence[Panel]]
Values = Mapping[Any, Iterable[float]]
FIGURES: dict[str, Callable[[Group], Figure | None]] = {}


def figure(name: str) -> Callable[[Callable[[Group], Content]], Callable[[Group], Figure | None]]:
    """Register a function, which returns a title, an explanation and views, as the figure of this name."""

    def register(make: Callable[[Group], Content]) -> Callable[[Group], Figure | None]:
        def made(group: Group) -> Figure | None:
            title, reading, panels = make(group)
            return Figure(name, title, reading, tuple(panels)) if panels else None

        FIGURES[name] = made
        return made

    return register


@figure("relative-change")
def relative_change(group: Group) -> Content:
    """Show the change relative to no replay by budget and strategy (the paper's figure 2a)."""
    y, labels = (
        Axis(f"change of {group.metric}", percent=True),
        [label for label in group.labels if label != group.base_label],
    )
    return (
        f"Change of {group.metric} relative to no replay",
        f"{group.better.capitalize()} is better. Each bar is the mean over seeds for the model after the last period, "
        "evaluated on the test sets of all periods and divided by the run without replay of the same seed. Error bars "
        "show the standard deviation, dots the individual seeds.",
        _bars_by_budget(group, labels, y, lambda runs: group.changes(runs).values()) if group.base else (),
    )


@figure("forgetting")
def forgetting(group: Group) -> Content:
    """Show forgetting by budget and strategy (the paper's figure 2b)."""
    bars = _bars_by_budget(group, group.labels, _forgetting(group), lambda runs: [r.forgetting for r in runs.values()])
    return (
        "Forgetting",
        f"Lower is better. Forgetting is how much worse the {group.metric} of the last model is than that of the best "
        "earlier model on the same test set, averaged over all periods but the last, which no earlier model was "
        "trained on. Bars, error bars and dots as above.",
        bars if group.has_forgetting else (),
    )


def _forgetting(group: Group) -> Axis:
    return Axis(f"forgetting ({group.metric})")


def _bars_by_budget(
    group: Group, labels: Iterable[str], y: Axis, values: Callable[[Runs], Iterable[float]]
) -> list[Panel]:
    """Return one view with one group of bars per budget."""
    series = (
        Series.of(label, group.styles[label], {budget: values(group.at(label, budget)) for budget in group.budgets})
        for label in labels
    )
    return [Panel(Bars(Axis("budget"), y, tuple(group.budgets), _present(series)))]


def _present(series: Iterable[Series]) -> tuple[Series, ...]:
    return tuple(each for each in series if each.x)


def _lines_by_budget(
    group: Group, x: str, y: Axis, values: Callable[[Runs], Values], choice: Mapping[str, str] | None = None
) -> list[Panel]:
    """Return one view per budget with one line per strategy."""
    panels = []
    for budget in group.budgets:
        runs = {label: own for label in group.labels if (own := group.at(label, budget))}
        series = _present(Series.of(label, group.styles[label], values(own)) for label, own in runs.items())
        if series:
            panels.append(Panel(Lines(Axis(x), y, series), {"budget": budget, **(choice or {})}))
    return panels


def _numbered(rows: Iterable[NDArray[Any]]) -> Values:
    """Return the columns of rows, one row per seed, numbered from 1."""
    return {t + 1: column for t, column in enumerate(np.array(list(rows)).T.tolist())}


@figure("test-periods")
def by_test_period(group: Group) -> Content:
    """Show the last model on each period's test set (the paper's figure 3)."""
    final = {key: run.run.matrix.values[-1] for key, run in group.base.items()}
    overall = {key: np.full(group.periods, run.score) for key, run in group.base.items()}
    zero = any((values == 0).any() for values in final.values())
    panels: list[Panel] = []
    for what, base in (("no replay on all periods (as the paper)", overall), ("no replay on the same period", final)):

        def changes(runs: Runs, base: Mapping[Any, Floats] = base) -> Values:
            pairs = paired(runs, group.base).items()
            return _numbered(_relative(run.run.matrix.values[-1], base[key]) for key, (run, _) in pairs)

        y = Axis(f"change of {group.metric}", percent=True)
        panels += _lines_by_budget(group, "test period", y, changes, {"relative to": what})
    return (
        "The last model on the test set of each period",
        f"{group.better.capitalize()} is better. Old periods are on the left: a line that "
        f"{'rises' if group.lower_is_better else 'falls'} to the left shows forgetting. Means over seeds, each "
        "relative to the run without replay of the same seed."
        + (" A period on which no replay scores 0 has no point in the view relative to that period." if zero else ""),
        panels,
    )


def _relative(values: Floats, base: Floats) -> Floats:
    """Return the change relative to a base; NaN where the base is 0 or diverged."""
    valid = np.isfinite(base) & (base != 0)
    return np.where(valid, values / np.where(valid, base, 1.0) - 1, np.nan)


@figure("test-periods-forgetting")
def forgetting_by_period(group: Group) -> Content:
    """Show the forgetting of the last model on each period's test set (a figure of the paper's appendix)."""

    def lost(runs: Runs) -> Values:
        return _numbered(run.run.matrix.forgetting()[-1] for run in runs.values())

    return (
        "Forgetting by test period",
        f"Lower is better. How much worse the {group.metric} of the last model on a period's test set is than that of "
        "the best earlier model; at 0 or below, nothing of the period was forgotten. The last period is new to the "
        "last model only. Means over seeds.",
        _lines_by_budget(group, "test period", _forgetting(group), lost) if group.has_forgetting else (),
    )


@figure("trade-off")
def trade_off(group: Group) -> Content:
    """Show forgetting against performance, one point per strategy and budget."""
    relative = bool(group.base)
    series = []
    for label in group.labels:
        points: dict[str, tuple[SeedStats, SeedStats]] = {}
        for budget in group.budgets:
            runs = group.at(label, budget)
            scores = group.changes(runs) if relative else {key: run.score for key, run in runs.items()}
            x, y = SeedStats.of(scores.values()), SeedStats.of(runs[key].forgetting for key in scores)
            any_budget = any(run.budget == ANY for run in runs.values())
            if x.n and y.n:
                points.setdefault("any budget" if any_budget else f"budget {budget}", (x, y))
        if points:
            xs, ys = zip(*points.values(), strict=True)
            series.append(Series(label, group.styles[label], tuple(x.mean for x in xs), ys, xs, tuple(points)))
    x_axis = Axis(f"change of {group.metric} relative to no replay", percent=True) if relative else Axis(group.metric)
    corner = "left" if group.lower_is_better else "right"
    return (
        "Forgetting against performance",
        f"The best corner is the lower {corner}: good on all periods and nothing forgotten. Each point is a strategy "
        "at a budget; lines join the budgets in ascending order. Error bars show standard deviations over seeds.",
        (Panel(Lines(x_axis, _forgetting(group), tuple(series))),) if group.has_forgetting else (),
    )


@figure("over-time")
def over_time(group: Group) -> Content:
    """Show the metric on all test sets after each training period."""

    def scores(runs: Runs) -> Values:
        return _numbered(run.run.matrix.all_period for run in runs.values())

    return (
        f"{group.metric.capitalize()} on the test sets of all periods, after each period",
        f"{group.better.capitalize()} is better. All test sets count from the start, including those of periods that "
        "the model has not been trained on yet. Means over seeds.",
        _lines_by_budget(group, "after period", Axis(group.metric), scores),
    )


@figure("matrix")
def matrix(group: Group) -> Content:
    """Show the score of the model after each period on each test period."""
    cells = group.cells()
    means = [np.mean([run.run.matrix.values for run in runs.values()], axis=0) for *_, runs in cells]
    known = np.concatenate([values[np.isfinite(values)] for values in means])
    limits = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    axes = Axis("test period"), Axis("after period"), Axis(group.metric)
    panels = []
    for (budget, label, _), values in zip(cells, means, strict=True):
        rows, columns = (tuple(str(t + 1) for t in range(many)) for many in values.shape)
        chart = Heatmap(*axes, columns, rows, values.tolist(), limits)
        panels.append(Panel(chart, {"strategy": label, "budget": budget}))
    return (
        f"{group.metric.capitalize()} of every model on every period",
        "Each row is the model after a period, each column a test set; means over seeds. A column shows how a period "
        "is learnt and then forgotten: left of the diagonal are periods that the model was trained on, right of it "
        "those to come.",
        panels,
    )


@figure("buffer-age")
def buffer_age(group: Group) -> Content:
    """Show the composition of the buffers by arrival period, over time."""
    axes = Axis("after period"), Axis("share of all buffers", percent=True)
    panels = []
    for budget, label, runs in group.cells():
        rows = [row for run in runs.values() for row in run.buffers if row["kept"]]
        moments = sorted({row["period"] for row in rows})
        layers = []
        for k in range(max(moments, default=-1) + 1):
            shares: dict[str, list[float]] = {str(moment + 1): [] for moment in moments}
            for row in rows:
                if k < len(row["arrived"]):
                    shares[str(row["period"] + 1)].append(row["arrived"][k] / row["kept"])
            layers.append(Series.of(f"period {k + 1}", style(k), shares))
        if layers:
            chart = Bars(*axes, tuple(str(moment + 1) for moment in moments), _present(layers), stacked=True)
            panels.append(Panel(chart, {"strategy": label, "budget": budget}))
    return (
        "Buffer composition by arrival period",
        "Each bar is the content of all clients' buffers after a period, split by the period in which the samples "
        "arrived; means over seeds. Equal parts mean that all past periods are equally represented, a large top part "
        "that the buffers lose the past.",
        panels,
    )


@figure("overlap")
def overlap(group: Group) -> Content:
    """Show how much of the buffers is kept by more than one client."""

    def duplicates(runs: Runs) -> Values:
        points: dict[int, list[float]] = {}
        for row in (row for run in runs.values() for row in run.buffers if row["kept"]):
            points.setdefault(row["period"] + 1, []).append(1 - row["distinct"] / row["kept"])
        return points

    return (
        "Duplicate content across buffers",
        "The fraction of kept samples, over all clients, whose content duplicates that of another kept sample; means "
        "over seeds. Clients that select jointly can leave out what others keep.",
        _lines_by_budget(group, "after period", Axis("fraction kept more than once", percent=True), duplicates),
    )


@figure("convergence")
def convergence(group: Group) -> Content:
    """Show the joint objective by coordination round, relative to round 0."""
    panels = []
    for budget in group.budgets:
        lines = []
        for label in group.labels:
            look = group.styles[label]
            for kind, dash in (("integer", "-"), ("relaxed", ":")):
                points = _objectives(group.at(label, budget).values(), kind)
                if len(points) > 1:
                    lines.append(Series.of(f"{label}: {kind}", Style(look.colour, look.marker, dash), points))
        if _present(lines):
            chart = Lines(Axis("round"), Axis("objective / round 0"), _present(lines))
            panels.append(Panel(chart, {"budget": budget}))
    return (
        "The joint objective by coordination round",
        "Lower is better: the squared norm of the sum of all selected unit gradients, divided by its value in round 0, "
        "in which every client selects alone; means over periods, then over seeds. “Integer” is the objective of the "
        "whole samples that clients selected in that round, “relaxed” that of weights between 0 and 1; the alternating "
        "method has only the latter between rounds. Clients keep their answer to the last broadcast. It follows the "
        "last round shown and is never summed, so that a coordination of one round has no line.",
        panels,
    )


def _objectives(runs: Iterable[Finished], kind: str) -> dict[int, list[float]]:
    """Return, by round, each run's mean over its periods of the objective relative to that of the integers in round 0.

    A method without integers in round 0 is compared with its relaxed objective there.
    """
    found: dict[int, list[float]] = {}
    for run in runs:
        begun = [row for row in run.coordination if row["round"] == 0]
        first = {row["period"]: row["relaxed"] if row["integer"] is None else row["integer"] for row in begun}
        ratios: dict[int, list[float]] = {}
        for row in run.coordination:
            if first.get(row["period"]) and row[kind] is not None:
                ratios.setdefault(row["round"], []).append(row[kind] / first[row["period"]])
        for round, values in ratios.items():
            found.setdefault(round, []).append(float(np.mean(values)))
    return dict(sorted(found.items()))


@figure("bytes")
def exchanged(group: Group) -> Content:
    """Show the bytes sent and received."""
    parts = {way: lambda run, way=way: run.run.summary[f"bytes_{way}"] / 1e6 for way in ("up", "down")}
    return (
        "Communication",
        "Megabytes sent up to the server and down to the clients, for all clients over the whole run: models in "
        "training, contributions and broadcasts in coordination. Means over seeds. Lower is cheaper.",
        _bars_by_strategy(group, "megabytes", parts, stacked=False),
    )


@figure("time")
def time_by_phase(group: Group) -> Content:
    """Show the duration of each phase."""
    phases = dict.fromkeys(phase for run in group.runs for phase in run.run.summary["seconds"])
    parts = {phase: lambda run, phase=phase: run.run.summary["seconds"].get(phase, 0.0) for phase in phases}
    return (
        "Time by phase",
        "Seconds of wall-clock time per phase on the machine that ran the experiment, including other load; means over "
        "seeds. Resumed runs add up the time of their parts.",
        _bars_by_strategy(group, "seconds", parts, stacked=True),
    )


def _bars_by_strategy(
    group: Group, y: str, parts: Mapping[str, Callable[[Finished], float]], *, stacked: bool
) -> list[Panel]:
    """Return one view per budget with one group of bars per strategy."""
    panels = []
    for budget in group.budgets:
        runs = {label: own.values() for label in group.labels if (own := group.at(label, budget))}
        series = (
            Series.of(name, style(k), {label: map(measure, own) for label, own in runs.items()})
            for k, (name, measure) in enumerate(parts.items())
        )
        chart = Bars(Axis("strategy"), Axis(y), tuple(runs), tuple(series), stacked=stacked)
        panels.append(Panel(chart, {"budget": budget}))
    return panels
