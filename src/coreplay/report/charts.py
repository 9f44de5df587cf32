"""What a figure shows, independent of how it is drawn: `renderer` draws it, `records` returns its numbers for CSV."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from coreplay.runtime.strategy import ALL, NONE

INK, MUTED = "#000000", "#777777"
# Okabe and Ito's colours, distinguishable with any kind of colour vision, without the yellow that fades on white
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKERS = ("o", "s", "D", "^", "P", "v", "X")  # 7 markers and 6 colours have no common factor
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class SeedStats:
    """Values of one quantity, one per seed.

    >>> SeedStats.of([1.0, 3.0]).mean, round(SeedStats.of([1.0, 3.0]).sd, 3), SeedStats.of([1.0]).sd
    (2.0, 1.414, None)
    """

    values: tuple[float, ...]

    @staticmethod
    def of(values: Iterable[float]) -> "SeedStats":
        """Keep the finite values."""
        return SeedStats(tuple(float(value) for value in values if value is not None and math.isfinite(value)))

    @property
    def n(self) -> int:
        """The number of values."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """The mean; NaN without values."""
        return fmean(self.values) if self.values else math.nan

    @property
    def sd(self) -> float | None:
        """The sample standard deviation; None with fewer than two values."""
        return stdev(self.values) if self.n > 1 else None


@dataclass(frozen=True)
class Style:
    """The appearance of a strategy in all figures; marker, dash and hatch help where colours look alike."""

    colour: str
    marker: str = "o"
    dash: str = "-"
    hatched: bool = False


def style(number: int) -> Style:
    """Return the style of the series with this number; the first 42 all differ."""
    turn = number // len(COLOURS)
    return Style(
        COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], DASHES[turn % len(DASHES)], turn % 2 == 1
    )


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Give every label its own style; no replay and full history always look the same.

    >>> styles(["none", "polished"])["polished"]
    Style(colour='#0072B2', marker='o', dash='-', hatched=False)
    """
    fixed = {NONE: Style(INK, "+", "--"), ALL: Style(MUTED, "*", "--")}
    return fixed | {label: style(k) for k, label in enumerate(label for label in labels if label not in fixed)}


@dataclass(frozen=True)
class Axis:
    """An axis; `percent` shows 0.1 as 10 %."""

    title: str
    percent: bool = False
    scale: str = "linear"  # or log, or symlog: powers of two with a place for 0


@dataclass(frozen=True)
class Series:
    """Points of one kind: `y` over `x` with the values behind each point, and notes on the points for the CSV."""

    label: str
    style: Style
    x: tuple[float | str, ...]
    y: tuple[SeedStats, ...]
    x_stats: tuple[SeedStats, ...] = ()  # if x is a mean too
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(label: str, style: Style, points: Mapping[Any, Iterable[float]]) -> "Series":
        """Make a series from the values at each x; an x without values is left out."""
        stats = {x: SeedStats.of(values) for x, values in points.items()}
        kept = {x: each for x, each in stats.items() if each.n}
        return Series(label, style, tuple(kept), tuple(kept.values()))


@dataclass(frozen=True)
class Bars:
    """Bars per category: side by side with standard deviation and one dot per value, or stacked."""

    x: Axis
    y: Axis
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    stacked: bool = False


@dataclass(frozen=True)
class Lines:
    """Points joined by lines, with error bars where x is a mean; `reference` is a labelled horizontal line."""

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    reference: tuple[float, str] | None = None


@dataclass(frozen=True)
class Heatmap:
    """A matrix as colours, row 0 on top; equal `limits` make several of them comparable."""

    x: Axis
    y: Axis
    value: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: Sequence[Sequence[float]]
    limits: tuple[float, float]


@dataclass(frozen=True)
class Histograms:
    """One histogram per series, above each other, first on top, with its median; `edges` are those of the bins."""

    x: Axis
    y: Axis
    series: Mapping[str, Sequence[float]]
    edges: Sequence[float]
    ticks: Sequence[float] = ()


Chart = Bars | Lines | Heatmap | Histograms


@dataclass(frozen=True)
class Panel:
    """One view of a figure; `choice` tells it apart from the others, such as {"budget": "20"}."""

    chart: Chart
    choice: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def title(self) -> str:
        """The name, or the choice in words."""
        return self.name or ", ".join(f"{key} {value}" for key, value in self.choice.items())


@dataclass(frozen=True)
class Figure:
    """A figure: its name, which is that of its files, its title, how to read it, and its views."""

    name: str
    title: str
    reading: str
    panels: tuple[Panel, ...]


def records(figure: Figure) -> list[dict[str, Any]]:
    """Return all numbers of a figure as rows of a table."""
    return [dict(panel.choice) | row for panel in figure.panels for row in _records(panel.chart)]


def _records(chart: Chart) -> list[dict[str, Any]]:
    if isinstance(chart, Heatmap):
        return [
            {chart.y.title: row, chart.x.title: column, chart.value.title: value}
            for row, values in zip(chart.rows, chart.values, strict=True)
            for column, value in zip(chart.columns, values, strict=True)
        ]
    if isinstance(chart, Histograms):
        return [{"series": label, chart.x.title: value} for label, values in chart.series.items() for value in values]
    found = []
    for series in chart.series:
        for k, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            row: dict[str, Any] = {"series": series.label, chart.x.title: x, chart.y.title: y.mean}
            if y.n > 1:
                row |= {"standard deviation": y.sd, "values": y.n, "each": " ".join(f"{v:.6g}" for v in y.values)}
            if series.x_stats:
                row[f"standard deviation of {chart.x.title}"] = series.x_stats[k].sd
            if series.notes:
                row["note"] = series.notes[k]
            found.append(row)
    return found
