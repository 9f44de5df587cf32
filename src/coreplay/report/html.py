"""The page: one HTML file without scripts that needs neither a network nor a server.

Its template lies beside this file. All text from runs (names of clients, options, paths) is escaped, and a
Content-Security-Policy forbids scripts and requests.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from coreplay import __version__
from coreplay.report.charts import Figure
from coreplay.report.compare import Group
from coreplay.report.tables import Table
from coreplay.report.text import clean, counted

FORMATS = {"png": "PNG", "svg": "SVG", "csv": "CSV", "md": "Markdown"}


def escaped(text: object) -> str:
    """Return a text for HTML, in content and in quoted attributes.

    >>> escaped("</script><img onerror='x'>")
    '&lt;/script&gt;&lt;img onerror=&#x27;x&#x27;&gt;'
    """
    return html.escape(clean(text), quote=True)


@dataclass(frozen=True)
class Section:
    """What the page shows of a group; `folder` is the place of its files, relative to the page, with a slash."""

    group: Group
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    folder: str
    drawings: Mapping[str, str]  # SVG elements by name of the figure


def page(sections: Sequence[Section], left_out: Sequence[str]) -> str:
    """Return the page."""
    runs = sum(len(section.group.runs) for section in sections)
    several = len(sections) > 1
    return Template((files("coreplay.report") / "template.html").read_text(encoding="utf-8")).substitute(
        version=escaped(__version__),
        summary=_summary(sections, runs),
        index="\n".join(_index(k, section, several) for k, section in enumerate(sections)),
        content="\n".join(_section(k, section, several) for k, section in enumerate(sections)),
        origin=_origin(sections, runs, left_out),
    )


def _summary(sections: Sequence[Section], runs: int) -> str:
    groups = [section.group for section in sections]
    seeds = {key for group in groups for key in group.keys}
    which = f" in {len(groups)} groups that cannot be compared with each other" if len(groups) > 1 else ""
    metrics = {f"{group.better.capitalize()} {escaped(group.metric)} is better." for group in groups}
    return f"{counted(runs, 'finished run')} with {counted(len(seeds), 'seed')}{which}. {' '.join(sorted(metrics))}"


def _index(number: int, section: Section, several: bool) -> str:
    parts: tuple[Figure | Table, ...] = (*section.tables, *section.figures)
    items = "".join(f'<li><a href="#part-{number}-{p.name}">{escaped(p.title)}</a></li>' for p in parts)
    heading = f'<p><a href="#group-{number}">{escaped(section.group.name)}</a></p>' if several else ""
    return f"{heading}<ul>{items}</ul>"


def _section(number: int, section: Section, several: bool) -> str:
    heading = escaped(section.group.name) if several else "Results"
    parts = [f'<section id="group-{number}" aria-label="{heading}">', f"<h2>{heading}</h2>"]
    parts += [f'<p class="note">{escaped(note)}</p>' for note in section.notes]
    for table in section.tables:
        parts.append(_part(number, table, section.folder, ("csv", "md"), _table(table)))
    for figure in section.figures:
        label = escaped(f"Figure: {figure.title}. {figure.reading} The numbers are in {figure.name}.csv.")
        plot = f'<div class="plot" role="img" aria-label="{label}">{section.drawings[figure.name]}</div>'
        parts.append(_part(number, figure, section.folder, ("png", "svg", "csv"), plot))
    return "\n".join([*parts, "</section>"])


def _part(number: int, part: Figure | Table, folder: str, suffixes: Iterable[str], content: str) -> str:
    links = " ".join(f'<a href="{folder}{part.name}.{suffix}">{FORMATS[suffix]}</a>' for suffix in suffixes)
    return (
        f'<section class="figure" id="part-{number}-{part.name}"><h3>{escaped(part.title)}</h3>'
        f'<p class="reading">{escaped(part.reading)}</p>{content}<p class="files">Files: {links}</p></section>'
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _origin(sections: Sequence[Section], runs: int, left_out: Sequence[str]) -> str:
    """Describe the runs behind the page: versions, configuration, and what was left out."""
    parts = [f"<p>Made by coreplay {escaped(__version__)} from {counted(runs, 'finished run')}.</p>"]
    if left_out:
        parts.append("<h3>Left out</h3><ul>" + "".join(f"<li>{escaped(text)}</li>" for text in left_out) + "</ul>")
    versions: dict[str, set[str]] = {}
    for run in (run for section in sections for run in section.group.runs):
        for name, value in run.versions.items():
            versions.setdefault(name, set()).add(value)
    parts.append("<h3>Versions used by the runs</h3>")
    parts.append(_list({name: " and ".join(sorted(values)) for name, values in versions.items()}))
    for group in (section.group for section in sections):
        seeds = ", ".join(f"{seed} (clients {sample})" if sample else f"{seed}" for seed, sample in group.keys)
        facts = {"runs": str(len(group.runs)), "seeds": seeds, "strategies": "; ".join(group.labels)}
        facts["budgets"] = ", ".join(group.budgets)
        name = f": {escaped(group.name)}" if group.name else ""
        parts.append(f"<h3>Configuration{name}</h3>{_list(facts | dict(group.setting))}")
    return "\n".join(parts)


def _list(facts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in facts.items()) + "</dl>"
