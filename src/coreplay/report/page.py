"""The page: one HTML file that needs nothing else, neither a network nor a server.

Its template, style and script lie in `web/`. A policy in its head lets run only the scripts that were written here, by
their digests; what comes from runs is text and stays text.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from coreplay import __version__
from coreplay.report.charts import Figure
from coreplay.report.groups import Group
from coreplay.report.interactive import interactive
from coreplay.report.tables import Table
from coreplay.report.texts import clean, counted, embedded, escaped

SUFFIXES = {"png": "PNG", "svg": "SVG", "csv": "CSV", "md": "Markdown"}


@dataclass(frozen=True)
class Sheet:
    """What is shown of a group; `folder` is where its files are, seen from the page: empty, or ending in a slash."""

    group: Group
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    folder: str = ""


def page(sheets: Sequence[Sheet], left_out: Sequence[str]) -> str:
    """Return the page."""
    from plotly.offline import get_plotlyjs

    library, script = str(get_plotlyjs()), _web("page.js")
    runs = sum(len(sheet.group.runs) for sheet in sheets)
    figures = [
        {"id": f"plot-{k}-{figure.name}", "views": interactive(figure)}
        for k, sheet in enumerate(sheets)
        for figure in sheet.figures
    ]
    return Template(_web("template.html")).substitute(
        policy=_policy(library, script),
        version=escaped(__version__),
        title="What replay keeps from being forgotten",
        summary=_summary(sheets, runs),
        style=_web("style.css"),
        chooser=_chooser(sheets),
        index="\n".join(_index(k, sheet) for k, sheet in enumerate(sheets)),
        content="\n".join(_sheet(k, sheet, several=len(sheets) > 1) for k, sheet in enumerate(sheets)),
        origin=_origin(sheets, runs, left_out),
        data=embedded({"figures": figures}),
        plotly=library,
        script=script,
    )


def _web(name: str) -> str:
    return (files("coreplay.report") / "web" / name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _summary(sheets: Sequence[Sheet], runs: int) -> str:
    first = sheets[0].group
    seeds = sorted({key for sheet in sheets for key in sheet.group.keys})
    count = f"{counted(runs, 'finished run')} with {counted(len(seeds), 'seed')}"
    which = f" in {len(sheets)} groups that can't be compared with each other" if len(sheets) > 1 else ""
    better = "Lower" if first.lower_is_better else "Higher"
    metric = f"{better} {escaped(first.metric)} is better." if len({s.group.metric for s in sheets}) == 1 else ""
    return f"{count}{which}. {metric} Point at a figure for its numbers; a name in a legend hides what it stands for."


def _chooser(sheets: Sequence[Sheet]) -> str:
    if len(sheets) == 1:
        return ""
    options = "".join(f'<option value="{k}">{escaped(s.group.name)}</option>' for k, s in enumerate(sheets))
    return (
        f'<p class="chooser"><label>Group of runs <select id="group" autocomplete="off">{options}</select></label></p>'
    )


def _hidden(number: int) -> str:
    return f' data-group="{number}"' + (" hidden" if number else "")


def _index(number: int, sheet: Sheet) -> str:
    parts: tuple[Figure | Table, ...] = (*sheet.tables, *sheet.figures)
    items = "".join(f'<li><a href="#part-{number}-{p.name}">{escaped(p.title)}</a></li>' for p in parts)
    return f'<ul{_hidden(number)}>{items}<li><a href="#origin">How these figures came about</a></li></ul>'


def _sheet(number: int, sheet: Sheet, *, several: bool) -> str:
    heading = escaped(sheet.group.name) if several else "Results"
    parts = [f'<section{_hidden(number)} aria-label="{heading}">', f"<h2>{heading}</h2>"]
    parts += [f'<p class="note">{escaped(note)}</p>' for note in sheet.notes]
    parts += [_table(number, table, sheet.folder) for table in sheet.tables]
    parts += [_figure(number, figure, sheet.folder) for figure in sheet.figures]
    return "\n".join([*parts, "</section>"])


def _figure(number: int, figure: Figure, folder: str) -> str:
    plot = f"plot-{number}-{figure.name}"
    boxes = []
    for key in dict.fromkeys(key for panel in figure.panels for key in panel.choice):
        values = list(dict.fromkeys(clean(panel.choice[key]) for panel in figure.panels))
        options = "".join(f"<option>{escaped(value)}</option>" for value in values)
        box = f'<select data-figure="{plot}" data-key="{escaped(key)}" autocomplete="off">{options}</select>'
        boxes.append(f"<label>{escaped(key)} {box}</label>")
    choices = f'<div class="choices">{"".join(boxes)}</div>' if boxes else ""
    said = f"Figure: {figure.title}. {figure.reading} Its numbers are in {figure.name}.csv."
    return (
        f'<section class="figure" id="part-{number}-{figure.name}"><h3>{escaped(figure.title)}</h3>'
        f'<p class="reading">{escaped(figure.reading)}</p>{choices}'
        f'<div class="plot" id="{plot}" role="img" aria-label="{escaped(said)}"></div>'
        f"{_files(figure.name, folder, ('png', 'svg', 'csv'))}</section>"
    )


def _files(name: str, folder: str, suffixes: Sequence[str]) -> str:
    links = " ".join(f'<a href="{folder}{name}.{suffix}">{SUFFIXES[suffix]}</a>' for suffix in suffixes)
    return f'<p class="files">Files: {links}</p>'


def _table(number: int, table: Table, folder: str) -> str:
    name = f"table-{number}-{table.name}"
    head = "".join(f'<th scope="col">{escaped(column)}</th>' for column in table.columns)
    rows = []
    column = table.columns.index(table.by) if table.by else 0
    for row in table.rows:
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in row)
        rows.append(f'<tr data-by="{escaped(row[column])}">{cells}</tr>')
    choices = ""
    if table.by:
        values = dict.fromkeys(row[column] for row in table.rows)
        options = '<option value="">all</option>' + "".join(f"<option>{escaped(value)}</option>" for value in values)
        box = f'<select data-table="{name}" autocomplete="off">{options}</select>'
        choices = f'<div class="choices"><label>{escaped(table.by)} {box}</label></div>'
    return (
        f'<section class="figure table" id="part-{number}-{table.name}"><h3>{escaped(table.title)}</h3>'
        f'<p class="reading">{escaped(table.reading)}</p>{choices}'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(table.title)}">'
        f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f"{_files(table.name, folder, ('csv', 'md'))}</section>"
    )


def _origin(sheets: Sequence[Sheet], runs: int, left_out: Sequence[str]) -> str:
    """Say how the data came about: runs, versions, configuration, and what is missing."""
    parts = ['<section id="origin"><h2>How these figures came about</h2>']
    parts.append(f"<p>coreplay {escaped(__version__)} made this page from {counted(runs, 'finished run')}.</p>")
    if left_out:
        parts.append("<h3>Left out</h3><ul>" + "".join(f"<li>{escaped(text)}</li>" for text in left_out) + "</ul>")
    versions: dict[str, set[str]] = {}
    for sheet in sheets:
        for run in sheet.group.runs:
            for name, value in run.versions.items():
                versions.setdefault(name, set()).add(value)
    parts.append("<h3>Versions with which the runs were carried out</h3>")
    parts.append(_list({name: " and ".join(sorted(values)) for name, values in versions.items()}))
    for k, sheet in enumerate(sheets):
        group = sheet.group
        seeds = ", ".join(f"{seed}" if not sample else f"{seed} (clients {sample})" for seed, sample in group.keys)
        facts = {"runs": str(len(group.runs)), "seeds": seeds, "strategies": "; ".join(group.labels)}
        facts["budgets"] = ", ".join(group.budgets)
        parts.append(f"<section{_hidden(k)}><h3>Configuration</h3>{_list(facts | group.setting)}</section>")
    return "\n".join([*parts, "</section>"])


def _list(facts: dict[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in facts.items()) + "</dl>"
