"""Figures as plotly draws them in the page: plain data, in which every text is escaped.

plotly's labels interpret a few HTML tags; numbers stand in the hover texts, which are made here, so that no template
ever meets a text from outside. Colours that begin with "@" are filled in by the page, by its light or dark theme.
"""

from typing import Any

from coreplay.report.charts import INK, MUTED, Axis, Bars, Chart, Figure, Heatmap, Lines, Points, Series
from coreplay.report.numbers import Spread
from coreplay.report.texts import clean, label, wrapped

Json = dict[str, Any]


def interactive(figure: Figure) -> list[Json]:
    """Return, for each view, what is chosen to see it, and plotly's traces and layout."""
    return [
        {"choice": {key: clean(value) for key, value in panel.choice.items()}, **_plot(panel.chart)}
        for panel in figure.panels
    ]


def _plot(chart: Chart) -> Json:
    match chart:
        case Bars():
            traces = _bars(chart)
            layout: Json = {"barmode": "relative" if chart.stacked else "overlay"}
            ticks: Json = {
                "tickmode": "array",
                "tickvals": list(range(len(chart.categories))),
                "ticktext": [label(name) for name in chart.categories],
                "showgrid": False,
                "zeroline": False,
                "range": [-0.5, len(chart.categories) - 0.5],
            }
        case Lines():
            traces, layout, ticks = [_line(chart, series) for series in chart.series], {}, {}
            places = sorted({x for series in chart.series for x in series.x if not isinstance(x, str)})
            ticks = {"dtick": max(1, len(places) // 10), "zeroline": False}
        case Points():
            traces, layout, ticks = [_point(chart, series) for series in chart.series], {}, {}
        case Heatmap():
            return _heatmap(chart)
    hidden = {"showticklabels": False, "showgrid": False, "zeroline": False} if getattr(chart, "bare", False) else {}
    layout |= {"xaxis": _axis(chart.x) | ticks | hidden, "yaxis": _axis(chart.y) | hidden}
    return {"traces": traces, "layout": layout}


def _axis(axis: Axis) -> Json:
    found: Json = {"title": {"text": label(axis.text)}, "type": "linear"}
    return found | ({"tickformat": ".2~%"} if axis.percent else {})


def _said(series: Series, number: int, chart: Bars | Lines | Points) -> str:
    """Return what is said of a point when it is pointed at."""
    y = series.y[number]
    lines = [f"<b>{label(series.label)}</b>"]
    if not getattr(chart, "bare", False):
        x = series.x[number]
        across = (
            _shown(series.wide[number], chart.x) if series.wide else chart.x.show(x) if isinstance(x, str) else f"{x:g}"
        )
        lines += [f"{label(chart.x.title)}: {label(across)}", f"{label(chart.y.title)}: {_shown(y, chart.y)}"]
        if y.n > 1:
            lines.append(f"{y.n} seeds: " + ", ".join(chart.y.show(value) for value in y.values[:12]))
    if series.notes:
        lines.append(wrapped(series.notes[number]))
    return "<br>".join(lines)


def _shown(spread: Spread, axis: Axis) -> str:
    mean = axis.show(spread.mean)
    return mean if spread.sd is None else f"{mean} ± {axis.show(spread.sd).lstrip('+')}"


def _base(series: Series, chart: Bars | Lines | Points, kind: str) -> Json:
    return {
        "type": kind,
        "name": label(series.label),
        "legendgroup": label(series.label),
        "y": [y.mean for y in series.y],
        "hovertext": [_said(series, k, chart) for k in range(len(series.y))],
        "hoverinfo": "text",
    }


def _error(spreads: tuple[Spread, ...], colour: str) -> Json:
    if not any(spread.sd for spread in spreads):
        return {"visible": False}
    return {"type": "data", "array": [s.sd or 0.0 for s in spreads], "color": colour, "thickness": 1, "width": 3}


def _bars(chart: Bars) -> list[Json]:
    traces = []
    for number, series in enumerate(chart.series):
        places = chart.places(number)
        shape = "/" if series.style.hatched else ""
        marker = {"color": series.style.colour, "opacity": 0.8, "pattern": {"shape": shape, "solidity": 0.25}}
        bar = _base(series, chart, "bar") | {"x": places, "width": chart.width * 0.92, "marker": marker}
        if not chart.stacked:
            bar["error_y"] = _error(series.y, INK)
        traces.append(bar)
        dots = [(place, value) for place, y in zip(places, series.y, strict=True) if y.n > 1 for value in y.values]
        if dots and not chart.stacked:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [place for place, _ in dots],
                    "y": [value for _, value in dots],
                    "legendgroup": label(series.label),
                    "showlegend": False,
                    "hoverinfo": "skip",
                    "marker": {"color": INK, "size": 4, "opacity": 0.7},
                }
            )
    return traces


def _line(chart: Lines, series: Series) -> Json:
    look = {
        "mode": "lines+markers",
        "line": {"color": series.style.colour, "dash": series.style.dash, "width": 2},
        "marker": _marker(series, 7),
    }
    return _base(series, chart, "scatter") | look | {"x": list(series.x)}


def _point(chart: Points, series: Series) -> Json:
    colour = series.style.colour
    look: Json = {"mode": "lines+markers" if chart.joined else "markers", "x": list(series.x)}
    look["line"] = {"color": colour, "dash": series.style.dash, "width": 1}
    look["marker"] = _marker(series, 9)
    if chart.bare and colour == MUTED:
        look["marker"] |= {"size": 5, "opacity": 0.6}
    look |= {"error_y": _error(series.y, colour), "error_x": _error(series.wide, colour)}
    return _base(series, chart, "scatter") | look


def _marker(series: Series, size: int) -> Json:
    symbol = series.style.marker
    edge = {"line": {"width": 2, "color": series.style.colour}} if symbol == "cross-thin" else {}
    return {"color": series.style.colour, "symbol": symbol, "size": size} | edge


def _heatmap(chart: Heatmap) -> Json:
    said = [
        [
            f"{label(chart.y.title)} {label(row)}, {label(chart.x.title)} {label(column)}<br>"
            f"<b>{label(chart.value.title)}: {chart.value.show(value)}</b>"
            for column, value in zip(chart.columns, values, strict=True)
        ]
        for row, values in zip(chart.rows, chart.values, strict=True)
    ]
    trace = {
        "type": "heatmap",
        "z": chart.values,
        "x": [label(name) for name in chart.columns],
        "y": [label(name) for name in chart.rows],
        "hovertext": said,
        "hoverinfo": "text",
        "colorscale": "Cividis",
        "zmin": chart.limits[0],
        "zmax": chart.limits[1],
        "colorbar": {"title": {"text": label(chart.value.title), "side": "right"}, "thickness": 14},
        "xgap": 1,
        "ygap": 1,
    }
    if sum(map(len, chart.values)) <= 150:
        trace |= {"text": [[f"{v:.3g}" for v in values] for values in chart.values], "texttemplate": "%{text}"}
    layout = {
        "xaxis": {"title": {"text": label(chart.x.title)}, "type": "category", "showgrid": False},
        "yaxis": {
            "title": {"text": label(chart.y.title)},
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
        },
    }
    return {"traces": [trace], "layout": layout}
