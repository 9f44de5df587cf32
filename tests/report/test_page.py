"""The page in a real browser: drawn, interactive, quiet, on a phone, in the dark, and with hostile texts."""

import dataclasses
import re
from itertools import pairwise

import pytest

from coreplay.report.charts import Figure, Panel, Points, Series
from coreplay.report.page import page
from coreplay.report.tables import Table
from tests.report.chromium import MISSING, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
HOSTILE = "</script><img src=x onerror=alert(1)><b id=injected>%{x} & $\\frac{"


@pytest.fixture(scope="module")
def browser():
    with chromium() as made:
        yield made


def changed(text):
    """Return what a text becomes when somebody means harm."""
    return f"{text} {HOSTILE}"


def test_figures_are_drawn_without_a_word_in_the_console_and_without_a_request(browser, written):
    report, _ = written
    browser.open(report.page)
    names = browser.run(
        "return [...document.querySelectorAll('.plot')].filter(p => p.querySelector('svg')).map(p => p.id)"
    )
    assert names == [f"plot-0-{figure.name}" for figure in report.sheets[0].figures]
    assert browser.complaints() == []
    asked = [url for url in browser.requests() if not url.startswith(("data:", "blob:"))]
    assert asked == [report.page.absolute().as_uri()]
    levels = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    assert browser.run("return [...document.querySelectorAll('.plot')].every(p => p.getAttribute('aria-label'))")
    links = browser.run("return [...document.querySelectorAll('.files a')].map(a => a.getAttribute('href'))")
    assert links
    assert all((report.folder / link).exists() for link in links)
    index = browser.run("return [...document.querySelectorAll('nav a')].map(a => a.getAttribute('href').slice(1))")
    assert all(browser.run("return !!document.getElementById(arguments[0])", target) for target in index)


def test_choosing_a_budget_changes_the_plot(browser, written):
    report, _ = written
    browser.open(report.page)
    read = "return document.getElementById('plot-0-over-time').data.map(trace => trace.y)"
    before = browser.run(read)
    browser.choose("select[data-figure='plot-0-over-time'][data-key='budget']", "4")
    after = browser.run(read)
    assert before[0] == after[0]  # no replay
    assert before[1] != after[1]
    # a strategy without a budget has one view: its budget follows
    browser.choose("select[data-figure='plot-0-matrix'][data-key='strategy']", "full_history")
    assert (
        browser.run("return document.querySelector(\"[data-figure='plot-0-matrix'][data-key='budget']\").value")
        == "any"
    )
    browser.choose("select[data-table='table-0-differences']", "4")
    assert set(
        browser.run(
            "return [...document.querySelectorAll('#table-0-differences tbody tr')].filter(r => !r.hidden)"
            ".map(r => r.cells[0].textContent)"
        )
    ) == {"4"}
    assert browser.complaints() == []


def test_on_a_phone_nothing_is_wider_than_the_screen(browser, written):
    browser.open(written[0].page, width=360)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.run("return Math.max(...[...document.querySelectorAll('.plot svg')].map(s => s.clientWidth))") <= 360


def test_dark_mode_changes_page_and_plots(browser, written):
    read = (
        "return [getComputedStyle(document.documentElement).backgroundColor,"
        "document.getElementById('plot-0-forgetting').layout.paper_bgcolor,"
        "document.getElementById('plot-0-forgetting').data[0].marker.color]"
    )
    browser.open(written[0].page)
    light = browser.run(read)
    browser.prefer("dark")
    browser.run("return new Promise(done => setTimeout(done, 50))")
    browser.drawn()
    dark = browser.run(read)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    browser.prefer("light")


def test_hostile_texts_stay_texts(browser, written, tmp_path):
    """Every text that comes from runs is replaced by one that would run a script if it could."""
    (sheet,) = written[0].sheets
    group = dataclasses.replace(
        sheet.group, name=HOSTILE, setting={changed(k): changed(v) for k, v in sheet.group.setting.items()}
    )

    def harm(figure: Figure) -> Figure:
        panels = []
        for panel in figure.panels:
            chart = panel.chart
            if hasattr(chart, "series"):
                series = tuple(
                    dataclasses.replace(s, label=changed(s.label), notes=tuple(map(changed, s.notes)))
                    for s in chart.series
                )
                chart = dataclasses.replace(chart, series=series, y=dataclasses.replace(chart.y, title=HOSTILE))
            panels.append(Panel(chart, {key: changed(value) for key, value in panel.choice.items()}))
        return dataclasses.replace(figure, panels=tuple(panels))

    def harm_table(table: Table) -> Table:
        return dataclasses.replace(table, rows=tuple(tuple(map(changed, row)) for row in table.rows))

    bad = dataclasses.replace(
        sheet,
        group=group,
        figures=tuple(map(harm, sheet.figures)),
        tables=tuple(map(harm_table, sheet.tables)),
        notes=(HOSTILE,),
    )
    target = tmp_path / "index.html"
    target.write_text(page([bad, bad], [HOSTILE]), encoding="utf-8")
    browser.open(target)
    assert browser.complaints() == []
    assert browser.run("return document.querySelectorAll('#injected, img[onerror], [onerror]').length") == 0
    hover = (
        "const plot = document.getElementById('plot-0-map'); const k = plot.data.findIndex(t => t.x.length);"
        "Plotly.Fx.hover(plot, [{curveNumber: k, pointNumber: 0}]);"
        "return plot.querySelector('.hoverlayer').textContent"
    )
    shown = browser.run(hover)
    assert "<imgsrc=xonerror=alert(1)>" in re.sub(r"\s", "", shown)  # lines are broken at spaces
    legend = browser.run("return document.querySelector('#plot-0-over-time .legend').textContent")
    assert HOSTILE in legend
    assert browser.run("return document.querySelector('.note').textContent") == HOSTILE
    browser.choose("#group", "1")
    assert browser.run("return !!document.querySelector('#plot-1-map svg')")
    assert browser.complaints() == []
    assert browser.run("return document.querySelectorAll('#injected, img, [onerror]').length") == 0


def test_hostile_texts_can_be_drawn_as_files(tmp_path):
    from xml.etree import ElementTree

    from coreplay.report.charts import Axis, Style
    from coreplay.report.drawn import save
    from coreplay.report.numbers import Spread

    series = Series(HOSTILE + "\x00\ud800", Style("#0072B2"), (1.0,), (Spread((1.0,)),))
    chart = Points(Axis(HOSTILE), Axis("$x^{"), (series,))
    figure = Figure("hostile", HOSTILE, "", (Panel(chart, {"client": HOSTILE}), Panel(chart)))
    for path in save(figure, tmp_path):
        assert path.exists()
    ElementTree.parse(tmp_path / "hostile.svg")
