"""The page in a real browser: complete, without requests, on a phone, in the dark, and with hostile texts."""

import dataclasses
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from coreplay.report.charts import Axis, Figure, Lines, Panel, SeedStats, Series, Style
from coreplay.report.compare import Group
from coreplay.report.html import page
from coreplay.report.renderer import inline_svg, save_figure
from coreplay.report.tables import Table
from tests.report.chromium import MISSING, chromium

pytestmark = [
    pytest.mark.xdist_group("report"),  # which share runs and a report
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


def test_figures_are_shown_without_a_word_in_the_console_and_without_a_request(browser, written):
    report, _ = written
    browser.open(report.page)
    names = browser.run("return [...document.querySelectorAll('.plot svg')].map(p => p.closest('section').id)")
    assert names == [f"part-0-{figure.name}" for figure in report.sections[0].figures]
    assert browser.complaints() == []
    asked = [url for url in browser.requests() if not url.startswith("data:")]
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
    assert browser.run("return document.scripts.length") == 0


def test_every_view_is_in_the_page_as_text_and_ids_do_not_clash(browser, written):
    report, _ = written
    browser.open(report.page)
    for figure in report.sections[0].figures:
        shown = browser.run(f"return document.querySelector('#part-0-{figure.name} svg').textContent")
        assert all(panel.title in shown for panel in figure.panels)
        for series in getattr(figure.panels[0].chart, "series", ()):
            assert series.label in shown
    ids = browser.run("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(ids)) == len(ids)
    used = browser.run("return [...document.querySelectorAll('use')].map(e => e.getAttribute('xlink:href').slice(1))")
    assert used
    assert set(used) <= set(ids)
    sizes = "e => e.getBBox().width + e.getBBox().height > 0"
    assert browser.run(f"return [...document.querySelectorAll('#part-0-over-time use')].every({sizes})")


def test_on_a_phone_the_page_is_not_wider_than_the_screen(browser, written):
    browser.open(written[0].page, width=360)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.run("return Math.max(...[...document.querySelectorAll('.plot')].map(s => s.clientWidth))") <= 360


def test_dark_mode_changes_page_and_plots(browser, written):
    read = (
        "return [getComputedStyle(document.documentElement).backgroundColor,"
        "getComputedStyle(document.querySelector('.plot')).filter]"
    )
    browser.open(written[0].page)
    light = browser.run(read)
    browser.prefer("dark")
    dark = browser.run(read)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    browser.prefer("light")


def test_hostile_texts_stay_texts(browser, written, tmp_path):
    """Every text that comes from runs is replaced by one that would run a script if it could."""
    (section,) = written[0].sections
    setting = {changed(k): changed(v) for k, v in section.group.setting.items()}
    group = Group(HOSTILE, setting, section.group.runs)

    def harm(figure: Figure) -> Figure:
        panels = []
        for panel in figure.panels:
            chart = panel.chart
            if hasattr(chart, "series"):
                series = tuple(dataclasses.replace(s, label=changed(s.label)) for s in chart.series)
                chart = dataclasses.replace(chart, series=series, y=dataclasses.replace(chart.y, title=HOSTILE))
            panels.append(Panel(chart, {key: changed(value) for key, value in panel.choice.items()}))
        return dataclasses.replace(figure, panels=tuple(panels))

    def harm_table(table: Table) -> Table:
        return dataclasses.replace(table, rows=tuple(tuple(map(changed, row)) for row in table.rows))

    figures = tuple(harm(figure) for figure in section.figures if figure.name in ("over-time", "bytes"))
    drawings = {}
    for figure in figures:
        save_figure(figure, tmp_path / "figure.svg")
        drawings[figure.name] = inline_svg((tmp_path / "figure.svg").read_text(encoding="utf-8"), f"{figure.name}-")
    tables = tuple(map(harm_table, section.tables))
    bad = dataclasses.replace(section, group=group, figures=figures, tables=tables, notes=(HOSTILE,), drawings=drawings)
    target = tmp_path / "index.html"
    target.write_text(page([bad, bad], [HOSTILE]), encoding="utf-8")
    browser.open(target)
    assert browser.complaints() == []
    assert browser.run("return document.querySelectorAll('#injected, img, script, [onerror]').length") == 0
    assert HOSTILE in browser.run("return document.querySelector('#part-0-over-time svg').textContent")
    assert HOSTILE in browser.run("return document.querySelector('#part-1-bytes svg').textContent")
    assert browser.run("return document.querySelector('.note').textContent") == HOSTILE
    assert HOSTILE in browser.run("return document.querySelector('td').textContent")


def test_hostile_texts_can_be_drawn_as_files(tmp_path):
    series = Series(HOSTILE + "\x00\ud800", Style("#0072B2"), (1.0,), (SeedStats((1.0,)),))
    chart = Lines(Axis(HOSTILE), Axis("$x^{"), (series,))
    figure = Figure("hostile", HOSTILE, "", (Panel(chart, {"client": HOSTILE}), Panel(chart)))
    paths = [tmp_path / "hostile.png", tmp_path / "hostile.svg"]
    save_figure(figure, *paths)
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    texts = [element.text for element in ElementTree.parse(paths[1]).iter() if element.tag.endswith("}text")]
    assert HOSTILE in texts
