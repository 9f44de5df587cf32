"""The figures about what runs keep, exchange and spend: buffers, coordination, bytes and time."""

from collections.abc import Sequence

import numpy as np

from coreplay.federated.strategy import is_coordinated
from coreplay.report.charts import COLOURS, Axis, Bars, Figure, Lines, Panel, Series, Style
from coreplay.report.gather import Finished
from coreplay.report.groups import Group
from coreplay.report.results import there


def buffer_age(group: Group) -> Figure | None:
    """Draw which share of the buffers arrived in which period, over time."""
    panels = []
    for budget, label, runs in group.once():
        kept = [run for run in runs.values() if run.buffers]
        if not kept:
            continue
        moments = sorted({row["period"] for run in kept for row in run.buffers if row["kept"]})
        layers = []
        for arrived in range(max(moments, default=-1) + 1):
            shares = {
                str(moment + 1): [
                    row["arrived"][arrived] / row["kept"]
                    for run in kept
                    for row in run.buffers
                    if row["period"] == moment and row["kept"] and arrived < len(row["arrived"])
                ]
                for moment in moments
            }
            layers.append(Series.of(f"period {arrived + 1}", _shade(arrived), shares))
        if layers:
            chart = Bars(
                Axis("after period"),
                Axis("share of all buffers", percent=True),
                tuple(str(moment + 1) for moment in moments),
                there(layers),
                stacked=True,
            )
            panels.append(Panel(chart, {"strategy": label, "budget": budget}))
    return _figure(
        "buffer-age",
        "From which period the samples in the buffers are",
        "Each bar is everything that all clients keep after a period, split by the period in which the samples "
        "arrived; means over seeds. Even parts mean that all of the past is kept alike, a large top part that buffers "
        "forget it.",
        panels,
    )


def _shade(number: int) -> Style:
    return Style(COLOURS[number % len(COLOURS)], hatched=number // len(COLOURS) % 2 == 1)


def overlap(group: Group) -> Figure | None:
    """Draw how much of the buffers is kept by more than one client."""
    panels = []
    for budget in group.budgets:
        lines = []
        for label in group.labels:
            points: dict[int, list[float]] = {}
            for run in group.at(label, budget).values():
                for row in run.buffers:
                    if row["kept"]:
                        points.setdefault(row["period"] + 1, []).append(1 - row["distinct"] / row["kept"])
            lines.append(Series.of(label, group.style(label), points))
        if there(lines):
            chart = Lines(Axis("after period"), Axis("share kept more than once", percent=True), there(lines))
            panels.append(Panel(chart, {"budget": budget}))
    return _figure(
        "overlap",
        "How much of the buffers is there twice",
        "The share of kept samples whose content is in some buffer already, over all clients; means over seeds. "
        "Clients that choose jointly can leave out what others keep.",
        panels,
    )


def convergence(group: Group) -> Figure | None:
    """Draw the coordinated objective by round, relative to what clients choose alone."""
    panels = []
    for budget in group.budgets:
        lines = []
        for label in group.labels:
            runs = list(group.at(label, budget).values())
            if not runs or not is_coordinated(runs[0].config.replay.strategy):
                continue
            for kind, dash in (("integer", "solid"), ("relaxed", "dot")):
                style = group.style(label)
                style = Style(style.colour, style.marker, dash)
                points = _objective(runs, kind)
                if len(points) > 1:
                    lines.append(Series.of(f"{label}: {kind}", style, points))
        if there(lines):
            panels.append(Panel(Lines(Axis("round"), Axis("objective / round 0"), there(lines)), {"budget": budget}))
    return _figure(
        "convergence",
        "How the joint objective falls with the rounds of coordination",
        "Lower is better: the squared length of the sum of all chosen unit gradients, divided by its value in round 0, "
        "where every client has chosen alone; means over periods, then over seeds. Integer is of whole samples as the "
        "clients answered in that round, relaxed of weights between 0 and 1, which is all that the alternating method "
        "has on its way. What clients keep is their answer to the last broadcast, which comes after the last round "
        "here and is summed by nobody; a coordination of one round has nothing to show.",
        panels,
    )


def _objective(runs: Sequence[Finished], kind: str) -> dict[int, list[float]]:
    """Return, by round, the objective relative to round 0 (of the integers, where the method has them there).

    One value a run: the mean over its periods.
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


def exchanged(group: Group) -> Figure | None:
    """Draw the bytes that went up and down."""
    panels = []
    for budget in group.budgets:
        labels = tuple(label for label in group.labels if group.at(label, budget))
        series = [
            Series.of(
                name,
                style,
                {label: [r.run.summary[key] / 1e6 for r in group.at(label, budget).values()] for label in labels},
            )
            for name, key, style in (
                ("up", "bytes_up", Style(COLOURS[0])),
                ("down", "bytes_down", Style(COLOURS[1], "square", hatched=True)),
            )
        ]
        panels.append(Panel(Bars(Axis("strategy"), Axis("megabytes"), labels, tuple(series)), {"budget": budget}))
    return _figure(
        "bytes",
        "What clients and server exchange",
        "All clients together, over the whole run: models in training, and contributions and broadcasts in "
        "coordination. Means over seeds. Lower is cheaper.",
        panels,
    )


def time_by_phase(group: Group) -> Figure | None:
    """Draw where the time goes."""
    panels = []
    phases = list(dict.fromkeys(phase for run in group.runs for phase in run.run.summary["seconds"]))
    for budget in group.budgets:
        labels = tuple(label for label in group.labels if group.at(label, budget))
        series = []
        for number, phase in enumerate(phases):
            spent = {
                label: [r.run.summary["seconds"].get(phase, 0.0) for r in group.at(label, budget).values()]
                for label in labels
            }
            series.append(Series.of(phase, _shade(number), spent))
        chart = Bars(Axis("strategy"), Axis("seconds"), labels, tuple(series), stacked=True)
        panels.append(Panel(chart, {"budget": budget}))
    return _figure(
        "time",
        "Where the time goes",
        "Seconds by phase, as they passed on the machine that carried out the runs, whatever else it did; means over "
        "seeds. Resumed runs count what their parts took.",
        panels,
    )


def _figure(name: str, title: str, reading: str, panels: Sequence[Panel]) -> Figure | None:
    return Figure(name, title, reading, tuple(panels)) if panels else None
