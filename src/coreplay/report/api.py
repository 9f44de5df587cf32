"""The report on runs: `write` makes a folder with page, figures and tables; `markdown` returns the results."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.files import check_output_dir, read_text, write_text
from coreplay.report.charts import records
from coreplay.report.compare import Group, group_runs
from coreplay.report.figures import FIGURES
from coreplay.report.html import Section, page
from coreplay.report.load import load_runs
from coreplay.report.renderer import inline_svg, save_figure
from coreplay.report.tables import Table, differences, notes, results, summarize
from coreplay.report.text import cell, counted, csv_text

PAGE = "index.html"
TABLES = ("results", "differences")
FILES = {PAGE} | {f"{name}.{suffix}" for name in (*FIGURES, *TABLES) for suffix in ("png", "svg", "csv", "md")}


@dataclass(frozen=True)
class Written:
    """A report: its folder and files, what the page shows, and which runs were left out."""

    folder: Path
    files: tuple[Path, ...]
    sections: tuple[Section, ...]
    left_out: tuple[str, ...]

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / PAGE

    def markdown(self) -> str:
        """Return the table of results of every group."""
        return "\n".join(_markdown(section.group, section.tables[0]) for section in self.sections)

    def to_json(self) -> dict[str, Any]:
        """Return paths and numbers as plain data."""
        groups = []
        for section in self.sections:
            group = section.group
            facts: dict[str, Any] = {"name": group.name, "metric": group.metric, "runs": len(group.runs)}
            facts |= {"seeds": [list(key) for key in group.keys], "notes": list(section.notes)}
            facts["figures"] = [figure.name for figure in section.figures]
            groups.append(facts | {table.name: list(table.records) for table in section.tables})
        paths = [str(path) for path in self.files]
        return {"page": str(self.page), "files": paths, "left_out": list(self.left_out), "groups": groups}


def write(runs: Iterable[Path | str], folder: Path | str, *, say: Callable[[str], None] = lambda text: None) -> Written:
    """Write a report on all finished runs below some folders.

    Parameters
    ----------
    runs
        Folders to search at any depth. Runs that are unfinished or damaged are left out and named.
    folder
        Output folder; it may contain an earlier report, but nothing else.
    say
        Receives progress messages, one line each.
    """
    folder = Path(folder)
    earlier = _earlier_files(folder)
    found, left_out = load_runs(runs)
    for text in left_out:
        say(f"warning: left out: {text}")
    groups = group_runs(found)
    say(f"{counted(len(found), 'finished run')} in {counted(len(groups), 'group')}")
    sections, files = [], [folder / PAGE]
    for number, group in enumerate(groups):
        place = f"group-{number + 1}/" if len(groups) > 1 else ""
        figures = tuple(figure for make in FIGURES.values() if (figure := make(group)) is not None)
        tables = tuple(table for table in (results(group), differences(group)) if table is not None)
        drawings = {}
        for table in tables:
            files += [folder / place / f"{table.name}.{suffix}" for suffix in ("csv", "md")]
            write_text(files[-2], csv_text(table.records))
            write_text(files[-1], table.markdown())
        for figure in figures:
            say(f"drawing {place}{figure.name}")
            files += [folder / place / f"{figure.name}.{suffix}" for suffix in ("png", "svg", "csv")]
            save_figure(figure, *files[-3:-1])
            drawings[figure.name] = inline_svg(read_text(files[-2]), f"{number}-{figure.name}-")
            write_text(files[-1], csv_text(records(figure)))
        sections.append(Section(group, figures, tables, _page_notes(group), place, drawings))
    write_text(folder / PAGE, page(sections, left_out))
    for path in earlier - set(files):
        path.unlink(missing_ok=True)
    return Written(folder, tuple(files), tuple(sections), tuple(left_out))


def markdown(runs: Iterable[Path | str]) -> str:
    """Return the table of results of all finished runs below some folders, without writing anything."""
    return "\n".join(_markdown(group, results(group)) for group in group_runs(load_runs(runs)[0]))


def _markdown(group: Group, table: Table) -> str:
    title = f"**{cell(group.name)}**\n\n" if group.name else ""
    return f"{title}{table.markdown()}\n{' '.join([summarize(group), *notes(group)])}\n"


def _earlier_files(folder: Path) -> set[Path]:
    """Return the files of an earlier report; refuse a folder that contains anything else."""
    subfolders = [path for path in folder.glob("group-*") if path.is_dir() and re.fullmatch(r"group-\d+", path.name)]
    check_output_dir(folder, FILES | {path.name for path in subfolders})
    for path in subfolders:
        check_output_dir(path, FILES)
    return {path for place in (folder, *subfolders) for path in place.glob("*") if path.is_file()}


def _page_notes(group: Group) -> tuple[str, ...]:
    """Return what the page says before the tables of a group."""
    said = [re.sub("`(.*?)`", r"“\1”", summarize(group))]
    if not group.base:
        said.append(
            "There is no run without replay, so relative figures are left out. To see them, run the same configuration "
            "with replay.strategy=none."
        )
    return (*said, *notes(group))
