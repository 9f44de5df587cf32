"""The report on runs: `write` makes a folder with the page, every figure and every table; `markdown` the results."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.errors import InputError
from coreplay.files import claim, replacing, write_text
from coreplay.report import resources, results, tables
from coreplay.report.charts import Figure, records
from coreplay.report.drawn import save
from coreplay.report.gather import gather
from coreplay.report.groups import Group, grouped
from coreplay.report.maps import gradient_map
from coreplay.report.page import Sheet, page
from coreplay.report.seen import diverged, incomplete, seen
from coreplay.report.tables import Table, cell, csv_text
from coreplay.report.texts import counted

PAGE = "index.html"
MAKERS: tuple[Callable[[Group], Figure | None], ...] = (
    results.relative_change,
    results.forgetting,
    results.by_test_period,
    results.forgetting_by_period,
    results.trade_off,
    results.over_time,
    results.matrix,
    resources.buffer_age,
    resources.overlap,
    resources.convergence,
    resources.exchanged,
    resources.time_by_phase,
)
FIGURES = (
    *("relative-change", "forgetting", "test-periods", "test-periods-forgetting", "trade-off", "over-time", "matrix"),
    *("buffer-age", "overlap", "convergence", "bytes", "time", "map"),
)
TABLES = ("results", "differences")
OURS = {PAGE} | {f"{name}.{suffix}" for name in (*FIGURES, *TABLES) for suffix in ("png", "svg", "csv", "md")}


@dataclass(frozen=True)
class Written:
    """What was written, what it says, and which runs were left out."""

    folder: Path
    files: tuple[Path, ...]
    sheets: tuple[Sheet, ...]
    left_out: tuple[str, ...]

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / PAGE

    def markdown(self) -> str:
        """Return the table of results of every group."""
        return _markdown([(sheet.group, sheet.tables[0]) for sheet in self.sheets])

    def to_json(self) -> dict[str, Any]:
        """Return paths and numbers as plain data."""
        return {
            "page": str(self.page),
            "files": [str(path) for path in self.files],
            "left_out": list(self.left_out),
            "groups": [
                {
                    "name": sheet.group.name,
                    "metric": sheet.group.metric,
                    "runs": len(sheet.group.runs),
                    "seeds": [list(key) for key in sheet.group.keys],
                    "notes": list(sheet.notes),
                    "figures": [figure.name for figure in sheet.figures],
                }
                | {table.name: list(table.records) for table in sheet.tables}
                for sheet in self.sheets
            ],
        }


def write(
    runs: Iterable[Path | str],
    folder: Path | str,
    *,
    gradient_maps: int = 0,
    texts: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Written:
    """Write a report on all finished runs below some folders.

    Parameters
    ----------
    runs
        Folders that are searched at any depth. What is not finished, or damaged, is left out and said.
    folder
        Where the report goes; it may hold an earlier report, and nothing else.
    gradient_maps
        For how many clients the gradient space is drawn. This loads the stream, the task and, where one is named, the
        start model of the runs' own configuration: ask for it only if you trust where the runs come from.
    texts
        Show the samples' texts in the maps. For public data only: whoever has the page has the texts.
    say
        Told of what is done now, line by line.
    """
    if gradient_maps < 0:
        raise InputError(f"gradient_maps must be a number of clients, 0 for none: got {gradient_maps}")
    folder = Path(folder)
    earlier = _claimed(folder)
    found, left = gather(runs)
    for text in left:
        say(f"warning: left out: {text}")
    groups = grouped(found)
    say(f"{counted(len(found), 'finished run')} in {counted(len(groups), 'group')}")
    sheets = []
    for number, group in enumerate(groups, 1):
        place = f"group-{number}/" if len(groups) > 1 else ""
        sheets.append(_sheet(group, place, gradient_maps, texts, say))
    files = [path for sheet in sheets for path in _write(sheet, folder, say)]
    say("writing the page")
    with replacing(folder / PAGE) as temporary:
        temporary.write_text(page(sheets, left), encoding="utf-8")
    files.insert(0, folder / PAGE)
    for path in earlier - set(files):  # of an earlier report: nothing leads to them any more
        path.unlink(missing_ok=True)
    return Written(folder, tuple(files), tuple(sheets), tuple(left))


def markdown(runs: Iterable[Path | str]) -> str:
    """Return the table of results of all finished runs below some folders, without writing anything."""
    return _markdown([(group, tables.results(group)) for group in grouped(gather(runs)[0])])


def _markdown(parts: Iterable[tuple[Group, Table]]) -> str:
    texts = []
    for group, table in parts:
        title = f"**{cell(group.name)}**\n\n" if group.name else ""
        said = " ".join(filter(None, (seen(group), group.lacking(), diverged(group), incomplete(group))))
        texts.append(f"{title}{table.markdown()}\n{said}\n")
    return "\n".join(texts)


def _claimed(folder: Path) -> set[Path]:
    """Check that a report may go into the folder; return the files of an earlier one."""
    subs = (
        [f for f in folder.glob("group-*") if f.is_dir() and re.fullmatch(r"group-\d+", f.name)]
        if folder.is_dir()
        else []
    )
    claim(folder, OURS | {sub.name for sub in subs})
    for sub in subs:
        claim(sub, OURS)
    return {path for place in (folder, *subs) if place.is_dir() for path in place.iterdir() if path.is_file()}


def _sheet(group: Group, place: str, maps: int, texts: bool, say: Callable[[str], None]) -> Sheet:
    """Make all figures and tables of a group."""
    figures = [figure for make in MAKERS if (figure := make(group)) is not None]
    notes = [re.sub("`(.*?)`", r"“\1”", seen(group))]
    if not group.base:
        notes.append(
            "There is no run without replay (strategy none), so figures relative to it are left out. Carry out the "
            "same run with replay.strategy=none to see them."
        )
    notes += [text for text in (group.lacking(), diverged(group), incomplete(group)) if text]
    drawn, problem = gradient_map(group, maps, texts=texts, say=say)
    figures += [drawn] if drawn else []
    notes += [problem] if problem else []
    made = (tables.results(group), tables.differences(group))
    return Sheet(group, tuple(figures), tuple(table for table in made if table), tuple(notes), place)


def _write(sheet: Sheet, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Write the figures and tables of a group."""
    place = folder / sheet.folder
    files = []
    for table in sheet.tables:
        files += [place / f"{table.name}.csv", place / f"{table.name}.md"]
        write_text(files[-2], csv_text(table.records))
        write_text(files[-1], table.markdown())
    for figure in sheet.figures:
        say(f"drawing {sheet.folder}{figure.name}")
        files += save(figure, place)
        files.append(place / f"{figure.name}.csv")
        write_text(files[-1], csv_text(records(figure)))
    return files
