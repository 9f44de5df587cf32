"""Numbers and names as text, Markdown and CSV; runs and sweeps as tables for the terminal. Imports nothing heavy."""

import csv
import io
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coreplay.experiments.scheduler import RunStatus, SweepStatus
    from coreplay.runtime.run_index import Listed

_BREAKS = "\t\n\r\x0b\x0c\x85\u2028\u2029"
_HIDDEN = ("Cc", "Cf", "Cs", "Cn", "Co")  # Unicode categories without a visible character


def clean(text: object) -> str:
    r"""Return a text on one line without control characters, direction marks and lone surrogates.

    >>> clean("play\n\x00jazz \u202egnp.exe")
    'play ?jazz ?gnp.exe'
    """
    return "".join(" " if c in _BREAKS else "?" if unicodedata.category(c) in _HIDDEN else c for c in str(text))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def column(values: Iterable[float | None], digits: int = 4) -> list[str]:
    """Format the numbers of a column with the same decimals, so that the largest has `digits` digits.

    >>> column([297.31, 9.6234, None]), column([0.84051, -0.01]), column([12345.6], digits=3)
    (['297.3', '9.6', '–'], ['0.8405', '-0.0100'], ['12346'])
    """
    numbers = list(values)
    places = decimals(numbers, digits)
    return ["–" if v is None else f"{v:.{places}f}" for v in numbers]


def decimals(values: Iterable[float | None], digits: int) -> int:
    """Return the number of decimals with which the largest number has `digits` digits.

    >>> decimals([297.31, 9.6, None], 4), decimals([0.084], 3), decimals([], 3)
    (1, 4, 0)
    """
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    return max(digits - 1 - math.floor(math.log10(largest)), 0) if largest else 0


def duration(seconds: float) -> str:
    """Write a duration in words.

    >>> duration(8.2), duration(75), duration(2 * 3600 + 120)
    ('8 s', '1 min 15 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def first_few(names: Sequence[str], many: int) -> str:
    """Quote the first names and count the others.

    >>> first_few(["ann", "bo"], 3), first_few(["ann", "bo"], 1)
    ("'ann', 'bo'", "'ann' and 1 more")
    """
    more = f" and {len(names) - many} more" if len(names) > many else ""
    return ", ".join(map(repr, names[:many])) + more


def which_test_sets(missing: Sequence[str]) -> str:
    """Name the test sets of a score that lacks those of some clients.

    >>> which_test_sets([]), which_test_sets(["ann", "bo"])
    ('all test sets', "the test sets of all clients but 'ann', 'bo'")
    """
    return f"the test sets of all clients but {first_few(missing, 3)}" if missing else "all test sets"


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; cells are escaped."""
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]]) + "\n"


def cell(text: str) -> str:
    r"""Escape a text for Markdown.

    >>> cell("a | b_c")
    'a \\| b\\_c'
    """
    for sign in ("\\", "|", "<", "`", "*", "_", "[", "]"):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def csv_text(records: Iterable[Mapping[str, Any]]) -> str:
    r"""Return records as CSV; a column that a record does not have stays empty.

    >>> csv_text([{"a": 1}, {"a": 2, "b": None}])
    'a,b\n1,\n2,\n'
    """
    rows = list(records)
    target = io.StringIO()
    writer = csv.DictWriter(target, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def run_table(summary: dict[str, Any]) -> str:
    """Return the scores after each period as a Markdown table."""
    name, metrics, missing = summary["metric"], summary["metrics"], summary["missing"]
    columns = [column for column in (name, "relative_change", "forgetting") if column in metrics]
    shown = [
        ["–" if value is None else f"{value:+.1%}" for value in metrics[each]]
        if each == "relative_change"
        else column(metrics[each])
        for each in columns
    ]
    periods = [f"{k + 1}{'*' if str(k) in missing else ''}" for k in range(len(metrics[name]))]
    budget = "" if summary["budget"] is None else f", budget {summary['budget']}"
    seconds = ", ".join(f"{phase} {duration(spent)}" for phase, spent in summary["seconds"].items())
    sent = f"{summary['bytes_up'] / 1e6:.1f} MB up, {summary['bytes_down'] / 1e6:.1f} MB down"
    parts = [
        f"Strategy {cell(summary['strategy'])}{budget}, seed {summary['seed']}: {cell(name)} on the test sets of all "
        "periods after each period; forgetting: how much worse it is on earlier periods than at its best.\n",
        markdown_table(["period", *(each.replace("_", " ") for each in columns)], zip(periods, *shown, strict=True)),
        *(
            rf"\* After period {int(period) + 1}, measured on {which_test_sets(clients)}." + "\n"
            for period, clients in missing.items()
        ),
        f"Time: {seconds}. Exchanged: {sent}.\n",
    ]
    return "\n".join(parts)


def runs_table(found: Sequence["Listed"]) -> str:
    """Return a list of runs as a Markdown table, with the same decimals for all scores of a metric."""
    scores: dict[str, str] = {}
    for metric in {run.metric for run in found}:
        some = [run for run in found if run.metric == metric and run.figure is not None]
        texts = column(run.figure for run in some)
        scores |= {run.name: f"{metric} {text}" for run, text in zip(some, texts, strict=True)}
    rows = []
    for run in found:
        state = run.state if run.period is None else f"{run.state}, period {run.period + 1}, round {run.round}"
        score = scores.get(run.name, "") + ("*" if run.missing else "")
        spent = duration(run.seconds) if run.seconds is not None else ""
        cells = (run.name, run.strategy, run.budget, run.seed, state, score, spent)
        rows.append(["" if each is None else str(each) for each in cells])
    return markdown_table(("run", "strategy", "budget", "seed", "state", "figure", "time"), rows)


def sweep_table(status: "SweepStatus") -> str:
    """Return the state of all runs as a Markdown table: one row per strategy, one column per budget."""
    budgets = list(dict.fromkeys(planned.budget for planned in status.runs))
    cells: dict[str, dict[str, list[str]]] = {}
    scores = column(status.by_name[planned.name].score for planned in status.runs)
    for planned, score in zip(status.runs, scores, strict=True):
        row = cells.setdefault(planned.strategy, {budget: [] for budget in budgets})
        row[planned.budget].append(_run_cell(status.by_name[planned.name], score))
    return markdown_table(
        ["strategy", *(f"budget {budget}" if budget else "no budget" for budget in budgets)],
        [[strategy, *map(", ".join, row.values())] for strategy, row in cells.items()],
    )


def _run_cell(run: "RunStatus", score: str) -> str:
    """Show a run by its score, by how far it is, or by its state."""
    if run.state == "finished":
        return score if run.score is not None else "done"
    return {"running": f"{run.done:.0%}", "failed": "failed", "waiting": "·"}[run.state]
