"""Figures as files: PNG and SVG, all views of a figure side by side."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter

from coreplay.files import replacing
from coreplay.report.charts import INK, MUTED, Axis, Bars, Chart, Figure, Heatmap, Lines, Points, Series
from coreplay.report.texts import clean

MOST = 24  # views in one file: more would be too small to read; the page has them all
FEW = 6  # views that find their own places
MARKS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "cross": "P",
    "x": "X",
    "star": "*",
    "cross-thin": "+",
}
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
INKS = {INK: "#000000", MUTED: "#777777"}
# texts of others may hold dollar signs: nothing in them is mathematics
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "coreplay", "text.parse_math": False, "axes.unicode_minus": True}


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg; return the paths."""
    paths = [folder / f"{figure.name}.png", folder / f"{figure.name}.svg"]
    with rc_context(SETTINGS):
        chart = draw(figure)
        for path in paths:
            with replacing(path, durable=False) as temporary:
                chart.savefig(temporary, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
            chart.set_layout_engine("none")  # everything has its place now: finding it takes longer than drawing
    return paths


def draw(figure: Figure) -> Drawing:
    """Draw all views of a figure, up to a number that can be read."""
    panels = figure.panels[:MOST]
    columns = min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    size = (7.2, 4.6) if columns == 1 else (4.2 * columns, 3.4 * rows + 0.8)
    few = len(panels) <= FEW
    chart = Drawing(figsize=size, layout="constrained" if few else None)
    FigureCanvasAgg(chart)
    places = chart.subplots(rows, columns, squeeze=False).ravel()
    names: dict[str, Any] = {}
    for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
        image = _draw(axes, panel.chart)
        if panel.choice:
            axes.set_title(clean(panel.title), fontsize=9 if few else 8)
        axes.set_xlabel(clean(panel.chart.x.text) if number + columns >= len(panels) or few else "")
        axes.set_ylabel(clean(panel.chart.y.text) if number % columns == 0 else "")
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            names.setdefault(name, handle)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    more = f" (the first {MOST} of {len(figure.panels)} views)" if len(figure.panels) > MOST else ""
    chart.suptitle(clean(figure.title) + more, fontsize=11)
    across = 3 if size[0] < 8 else 4
    if not few:
        _spaced(chart, rows, columns, below=0.7 + 0.22 * math.ceil(len(names) / across))
    if image is not None and isinstance(panels[0].chart, Heatmap):  # one for all: their limits are the same
        chart.colorbar(image, ax=list(places), label=clean(panels[0].chart.value.title), fraction=0.03, pad=0.02)
    if names:
        place: Any = "outside lower center" if few else "lower center"
        chart.legend(names.values(), names.keys(), loc=place, ncols=across, frameon=False, fontsize=8)
    return chart


def _spaced(chart: Drawing, rows: int, columns: int, below: float) -> None:
    """Set the space around and between many views, in inches: to have it found out takes seconds."""
    width, height = chart.get_size_inches()
    gaps = (0.5, 0.9)
    wide, high = width - 1.0 - gaps[0] * (columns - 1), height - 0.8 - below - gaps[1] * (rows - 1)
    chart.subplots_adjust(
        left=0.8 / width,
        right=1 - 0.2 / width,
        top=1 - 0.8 / height,
        bottom=below / height,
        wspace=gaps[0] * columns / wide,
        hspace=gaps[1] * rows / high,
    )


def _draw(axes: Axes, chart: Chart) -> AxesImage | None:
    match chart:
        case Bars():
            _bars(axes, chart)
        case Lines():
            for series in chart.series:
                axes.plot(series.x, [y.mean for y in series.y], label=clean(series.label), **_look(series))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
        case Points():
            _points(axes, chart)
        case Heatmap():
            return _heatmap(axes, chart)
    _scale(axes.xaxis, chart.x)
    _scale(axes.yaxis, chart.y)
    axes.spines[["top", "right"]].set_visible(False)
    return None


def _scale(axis: Any, meaning: Axis) -> None:
    if meaning.percent:
        axis.set_major_formatter(PercentFormatter(1.0))


def _colour(series: Series) -> str:
    return INKS.get(series.style.colour, series.style.colour)


def _look(series: Series) -> dict[str, Any]:
    style = series.style
    return {
        "color": _colour(series),
        "marker": MARKS[style.marker],
        "linestyle": DASHES[style.dash],
        "markersize": 5,
        "linewidth": 1.4,
    }


def _bars(axes: Axes, chart: Bars) -> None:
    below = np.zeros(len(chart.categories))
    for number, series in enumerate(chart.series):
        places, heights = np.array(chart.places(number)), np.array([y.mean for y in series.y])
        at = [chart.categories.index(str(x)) for x in series.x]
        look: dict[str, Any] = {
            "color": _colour(series),
            "alpha": 0.75,
            "hatch": "//" if series.style.hatched else None,
        }
        axes.bar(
            places,
            heights,
            chart.width * 0.92,
            bottom=below[at] if chart.stacked else 0,
            label=clean(series.label),
            edgecolor="white",
            linewidth=0.5,
            **look,
        )
        if chart.stacked:
            below[at] += heights
            continue
        spread = [y.sd or 0.0 for y in series.y]
        if any(spread):
            axes.errorbar(places, heights, spread, fmt="none", ecolor="black", elinewidth=1, capsize=2)
        for place, y in zip(places, series.y, strict=True):
            if y.n > 1:
                axes.plot([place] * y.n, y.values, ".", color="black", markersize=3.5, alpha=0.7)
    axes.axhline(0, color="black", linewidth=0.8)
    long = max(map(len, chart.categories), default=0) > 6
    axes.set_xticks(range(len(chart.categories)), [clean(name) for name in chart.categories])
    if long:
        axes.tick_params(axis="x", labelrotation=30, labelsize=8)
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")


def _points(axes: Axes, chart: Points) -> None:
    for series in chart.series:
        look = _look(series)
        if not chart.joined:
            look["linestyle"] = "none"
        up = [y.sd or 0.0 for y in series.y]
        across = [x.sd or 0.0 for x in series.wide] or [0.0] * len(up)
        heights = [y.mean for y in series.y]
        if any(up) or any(across):
            axes.errorbar(series.x, heights, up, across, fmt="none", ecolor=look["color"], elinewidth=0.7, alpha=0.6)
        if chart.bare and series.style.colour == MUTED:
            look |= {"markersize": 3, "alpha": 0.5}
        axes.plot(series.x, heights, label=clean(series.label), **look)
    if chart.bare:
        axes.set_xticks([])
        axes.set_yticks([])


def _heatmap(axes: Axes, chart: Heatmap) -> AxesImage:
    values = np.array(chart.values, dtype=float)
    low, high = chart.limits
    shown = axes.imshow(values, cmap="cividis", aspect="auto", interpolation="nearest", vmin=low, vmax=high)
    step = max(1, len(chart.columns) // 10)
    axes.set_xticks(range(0, len(chart.columns), step), chart.columns[::step])
    step = max(1, len(chart.rows) // 10)
    axes.set_yticks(range(0, len(chart.rows), step), chart.rows[::step])
    if values.size <= 36:
        for (row, column), value in np.ndenumerate(values):
            colour = "black" if value > (low + high) / 2 else "white"
            axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=7, color=colour)
    return shown
