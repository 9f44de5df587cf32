"""What a figure shows, apart from how it is drawn: each figure is described once, here, and drawn twice.

`drawn` makes files of a figure with matplotlib, `interactive` makes what the page shows, and `records` makes its CSV:
all three from the same description.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coreplay.federated.strategy import ALL, NONE
from coreplay.report.numbers import Spread

INK = "@ink"  # dark on a light page, light on a dark one
MUTED = "@muted"
# Okabe and Ito's colours, distinguishable with any kind of colour vision, without the yellow that fades on white
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "x")  # 7 and 6 have no common factor
DASHES = ("solid", "dash", "dashdot", "dot")


@dataclass(frozen=True)
class Style:
    """How a strategy looks in every figure: by colour, and by marker and dash for who can't tell colours apart."""

    colour: str
    marker: str = "circle"
    dash: str = "solid"
    hatched: bool = False


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Give every label a style of its own; no replay and all data always look the same.

    >>> styles(["none", "polished"])["polished"]
    Style(colour='#0072B2', marker='circle', dash='solid', hatched=False)
    """
    found = {NONE: Style(INK, "cross-thin", "dash"), ALL: Style(MUTED, "star", "dash")}
    others = [label for label in labels if label not in found]
    for k, label in enumerate(others):
        turn = k // len(COLOURS)
        found[label] = Style(
            COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)], DASHES[turn % len(DASHES)], turn % 2 == 1
        )
    return found


@dataclass(frozen=True)
class Axis:
    """What an axis measures; `percent` shows 0.1 as 10 %, `signed` as +10 %; `more` is of this drawing alone."""

    title: str
    percent: bool = False
    signed: bool = False
    more: str = ""

    @property
    def text(self) -> str:
        """What stands at the axis.

        >>> Axis("component 1", more="16% of the variance").text
        'component 1 (16% of the variance)'
        """
        return f"{self.title} ({self.more})" if self.more else self.title

    def show(self, value: float | str | None) -> str:
        """Return a value as a person reads it.

        >>> Axis("change", percent=True).show(-0.123), Axis("perplexity").show(123.456)
        ('-12.3%', '123.5')
        """
        if value is None or isinstance(value, str):
            return value or "–"
        return format(value, ("+" if self.signed else "") + (".1%" if self.percent else ".4g"))


@dataclass(frozen=True)
class Series:
    """Points of one kind: `y` over `x`, each with the values behind it (one a seed) and what else is said of it."""

    label: str
    style: Style
    x: tuple[float | str, ...]
    y: tuple[Spread, ...]
    wide: tuple[Spread, ...] = ()  # the spread of x, where x is a mean too
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(label: str, style: Style, points: Mapping[Any, Sequence[float]]) -> "Series":
        """Make a series from the values at each x; an x without values is left out."""
        kept = {x: Spread.of(values) for x, values in points.items()}
        kept = {x: spread for x, spread in kept.items() if spread.n}
        return Series(label, style, tuple(kept), tuple(kept.values()))


@dataclass(frozen=True)
class Bars:
    """Bars by category, beside each other with their spread and a dot a value, or on top of each other."""

    x: Axis
    y: Axis
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    stacked: bool = False

    @property
    def width(self) -> float:
        """How wide a bar is, in categories."""
        return 0.8 if self.stacked else 0.84 / max(len(self.series), 1)

    def places(self, number: int) -> list[float]:
        """Return where the bars of a series stand; category k is at k."""
        shift = 0.0 if self.stacked else (number - (len(self.series) - 1) / 2) * self.width
        return [self.categories.index(str(x)) + shift for x in self.series[number].x]


@dataclass(frozen=True)
class Lines:
    """Lines over whole numbers: periods or rounds."""

    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Points:
    """Points in a plane, with their spread in both directions if they have one."""

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    joined: bool = False
    bare: bool = False  # the axes have no meaning of their own: no numbers on them


@dataclass(frozen=True)
class Heatmap:
    """A matrix as colours with its numbers; row 0 is on top."""

    x: Axis
    y: Axis
    value: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    limits: tuple[float, float]  # of the colours: the same in all views, so that they can be compared


Chart = Bars | Lines | Points | Heatmap


@dataclass(frozen=True)
class Panel:
    """One view of a figure, and what a reader chooses to see it, such as {"budget": "20"}."""

    chart: Chart
    choice: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The choice in words."""
        return ", ".join(f"{key} {value}" for key, value in self.choice.items())


@dataclass(frozen=True)
class Figure:
    """A figure: its name (also of its files), its title, how to read it, and its views."""

    name: str
    title: str
    reading: str
    panels: tuple[Panel, ...]


def records(figure: Figure) -> list[dict[str, Any]]:
    """Return everything that a figure shows as rows of a table."""
    return [panel.choice | row for panel in figure.panels for row in _records(panel.chart)]


def _records(chart: Chart) -> list[dict[str, Any]]:
    if isinstance(chart, Heatmap):
        return [
            {chart.y.title: row, chart.x.title: column, chart.value.title: value}
            for row, values in zip(chart.rows, chart.values, strict=True)
            for column, value in zip(chart.columns, values, strict=True)
        ]
    found = []
    for series in chart.series:
        for k, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            row: dict[str, Any] = {"series": series.label, chart.x.title: x, chart.y.title: y.mean}
            if y.n > 1 or y.sd is not None:
                row |= {"standard deviation": y.sd, "values": y.n, "each": " ".join(f"{v:.6g}" for v in y.values)}
            if series.wide:
                row[f"standard deviation of {chart.x.title}"] = series.wide[k].sd
            if series.notes:
                row["note"] = series.notes[k]
            found.append(row)
    return found
