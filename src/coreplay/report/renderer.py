"""Draws figures with matplotlib as PNG and SVG files, with all views side by side, and embeds the SVG in the page."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator, PercentFormatter

from coreplay.files import atomic_write
from coreplay.report.charts import Bars, Chart, Figure, Heatmap, Histograms, Lines, style
from coreplay.report.text import clean

MAX_PANELS = 60  # views per file; the CSV has the numbers of all
FEW = 6  # up to this many views matplotlib computes the layout; for more it would take seconds
# text in SVG stays text; names from outside may contain dollar signs, which are not mathematics
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "coreplay", "svg.fonttype": "none", "text.parse_math": False}
SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def save_figure(figure: Figure, *paths: Path) -> None:
    """Write a figure to files, PNG or SVG by suffix."""
    with rc_context(SETTINGS):
        drawing = draw(figure)
        for path in paths:
            with atomic_write(path, durable=False) as temporary:
                drawing.savefig(temporary, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
            drawing.set_layout_engine("none")  # computed once for all formats: it takes longer than drawing


def inline_svg(text: str, prefix: str) -> str:
    """Return an SVG file as an element of an HTML page: scalable, and with ids that are unique in the page."""
    used = set(re.findall(r"""(?:url\(|href=")#([^)"]+)""", text))
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            if name == "id":
                del element.attrib[name]
            if name == "id" and value in used:
                element.set(name, prefix + value)
            elif name.endswith("href") and value.startswith("#"):
                element.set(name, f"#{prefix}{value[1:]}")
            elif "url(#" in value:
                element.set(name, value.replace("url(#", f"url(#{prefix}"))
    width, _ = root.attrib.pop("width"), root.attrib.pop("height")
    root.set("style", f"max-width: {1.4 * float(width.removesuffix('pt')):.0f}px")
    return ElementTree.tostring(root, encoding="unicode")


def draw(figure: Figure) -> Drawing:
    """Draw all views of a figure, up to `MAX_PANELS`."""
    panels = figure.panels[:MAX_PANELS]
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    few = len(panels) <= FEW
    first = panels[0].chart
    size = (4.2 * columns, 3.4 * rows + 0.8)
    if columns == 1:
        size = (7.2, 0.55 * len(first.series) + 1.5) if isinstance(first, Histograms) else (7.2, 4.6)
    drawing = Drawing(figsize=size, layout="constrained" if few else None)
    FigureCanvasAgg(drawing)
    places = drawing.subplots(rows, columns, squeeze=False).ravel()
    legend: dict[str, Any] = {}
    heatmaps: list[tuple[Axes, Heatmap]] = []
    for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
        _draw(axes, panel.chart)
        if isinstance(panel.chart, Heatmap):
            heatmaps.append((axes, panel.chart))
        axes.set_title(clean(panel.title), fontsize=9 if few else 8)
        mixed = bool(panel.name)  # views of different quantities: each needs its own axis titles
        axes.set_xlabel(clean(panel.chart.x.title) if few or number + columns >= len(panels) else "")
        axes.set_ylabel(clean(panel.chart.y.title) if mixed or number % columns == 0 else "")
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            legend.setdefault(name, handle)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    cut = f" (the first {MAX_PANELS} of {len(figure.panels)} views)" if len(figure.panels) > MAX_PANELS else ""
    drawing.suptitle(clean(figure.title) + cut, fontsize=11)
    per_row = 3 if size[0] < 8 else 4
    if not few:
        _set_margins(drawing, rows, columns, bottom=0.7 + 0.22 * math.ceil(len(legend) / per_row))
    shared = len({chart.limits for _, chart in heatmaps}) == 1
    for axes, chart in heatmaps[:1] if shared else heatmaps:
        where: Any = list(places) if shared and len(heatmaps) == len(panels) else axes
        drawing.colorbar(axes.images[0], ax=where, label=clean(chart.value.title), fraction=0.03, pad=0.02)
    if legend:
        place: Any = "outside lower center" if few else "lower center"
        drawing.legend(legend.values(), legend.keys(), loc=place, ncols=per_row, frameon=False, fontsize=8)
    return drawing


def _set_margins(drawing: Drawing, rows: int, columns: int, bottom: float) -> None:
    """Set the space around and between many views, in inches."""
    width, height = drawing.get_size_inches()
    inner_width, inner_height = width - 1.0 - 0.5 * (columns - 1), height - 0.8 - bottom - 0.9 * (rows - 1)
    drawing.subplots_adjust(
        left=0.8 / width,
        right=1 - 0.2 / width,
        top=1 - 0.8 / height,
        bottom=bottom / height,
        wspace=0.5 * columns / inner_width,
        hspace=0.9 * rows / inner_height,
    )


def _draw(axes: Axes, chart: Chart) -> None:
    if isinstance(chart, Heatmap):
        _draw_heatmap(axes, chart)
        return
    if isinstance(chart, Histograms):
        _draw_histograms(axes, chart)
    elif isinstance(chart, Bars):
        _draw_bars(axes, chart)
    else:
        _draw_lines(axes, chart)
    for axis, scale in ((axes.xaxis, chart.x), (axes.yaxis, chart.y)):
        if scale.percent:
            axis.set_major_formatter(PercentFormatter(1.0))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bars(axes: Axes, chart: Bars) -> None:
    width = 0.8 if chart.stacked else 0.84 / max(len(chart.series), 1)
    bottom = np.zeros(len(chart.categories))
    for number, series in enumerate(chart.series):
        at = np.array([chart.categories.index(str(x)) for x in series.x], dtype=int)
        places = at if chart.stacked else at + (number - (len(chart.series) - 1) / 2) * width
        heights = np.array([y.mean for y in series.y])
        axes.bar(
            places,
            heights,
            width * 0.92,
            bottom=bottom[at],
            label=clean(series.label),
            edgecolor="white",
            linewidth=0.5,
            color=series.style.colour,
            alpha=0.75,
            hatch="//" if series.style.hatched else None,
        )
        if chart.stacked:
            bottom[at] += heights
            continue
        deviations = [y.sd or 0.0 for y in series.y]
        if any(deviations):
            axes.errorbar(places, heights, deviations, fmt="none", ecolor="black", elinewidth=1, capsize=2)
        dots = [(place, value) for place, y in zip(places, series.y, strict=True) if y.n > 1 for value in y.values]
        if dots:
            axes.plot(*zip(*dots, strict=True), ".", color="black", markersize=3.5, alpha=0.7)
    axes.axhline(0, color="black", linewidth=0.8)
    step = max(1, len(chart.categories) // 20)
    names = [clean(name) for name in chart.categories[::step]]
    axes.set_xticks(range(0, len(chart.categories), step), names)
    if max(map(len, names), default=0) > 6:
        axes.tick_params(axis="x", labelrotation=30, labelsize=8)
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")


def _draw_lines(axes: Axes, chart: Lines) -> None:
    for series in chart.series:
        look, heights = series.style, [y.mean for y in series.y]
        if series.x_stats:
            up, across = ([each.sd or 0.0 for each in stats] for stats in (series.y, series.x_stats))
            axes.errorbar(series.x, heights, up, across, fmt="none", ecolor=look.colour, elinewidth=0.7, alpha=0.6)
        axes.plot(
            series.x,
            heights,
            label=clean(series.label),
            color=look.colour,
            marker=look.marker,
            markersize=5,
            linestyle=look.dash,
            linewidth=1.4,
        )
    if chart.reference is not None:
        axes.axhline(chart.reference[0], color="black", linewidth=0.8, label=clean(chart.reference[1]))
    places = sorted({x for series in chart.series for x in series.x if isinstance(x, int)})
    if chart.x.scale == "symlog":
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xticks(places, [str(x) for x in places])
        axes.minorticks_off()
    elif places:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))


def _draw_heatmap(axes: Axes, chart: Heatmap) -> None:
    values = np.array(chart.values, dtype=float)
    low, high = chart.limits
    axes.imshow(values, cmap="cividis", aspect="auto", interpolation="nearest", vmin=low, vmax=high)
    for axis, names in ((axes.xaxis, chart.columns), (axes.yaxis, chart.rows)):
        step = max(1, len(names) // 10)
        axis.set_ticks(range(0, len(names), step), [clean(name) for name in names[::step]])
    if values.size <= 100:
        for (row, column), value in np.ndenumerate(values):
            colour = "black" if value > (low + high) / 2 else "white"
            size = 7 if values.size <= 36 else 5
            axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=size, color=colour)


def _draw_histograms(axes: Axes, chart: Histograms) -> None:
    for k, (level, values) in enumerate(zip(range(len(chart.series))[::-1], chart.series.values(), strict=True)):
        counts, _ = np.histogram(values, np.asarray(chart.edges))
        heights = level + 0.85 * counts / max(counts.max(), 1)
        axes.stairs(heights, chart.edges, baseline=level, fill=True, color=style(k).colour, alpha=0.55)
        median = float(np.median(values)) if len(values) else math.nan
        axes.plot([median, median], [level, level + 0.9], color="black", linewidth=1.2)
        axes.annotate(f" {median:.3f}", (median, level + 0.9), ha="left", va="top", fontsize=8)
    axes.set_yticks([k + 0.3 for k in range(len(chart.series))[::-1]], [clean(name) for name in chart.series])
    axes.tick_params(axis="y", length=0)
    axes.set_xscale(chart.x.scale)
    if chart.ticks:
        axes.set_xticks(chart.ticks, [f"{tick:g}" for tick in chart.ticks])
        axes.minorticks_off()
