"""Runs and sweeps as Markdown tables, for the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coreplay.report.html import clean, column

if TYPE_CHECKING:
    from coreplay.experiments.scheduler import RunStatus, SweepStatus
    from coreplay.runtime.run_index import Listed


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


def without(missing: Sequence[str]) -> str:
    """Say which test sets a figure is from.

    >>> without([]), without(["ann", "bo"])
    ('all test sets', "the test sets of all clients but 'ann', 'bo'")
    """
    some = ", ".join(map(repr, missing[:3])) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"the test sets of all clients but {some}" if missing else "all test sets"


def run_table(summary: dict[str, Any]) -> str:
    """Return the figures after each period as a Markdown table."""
    name, metrics = summary["metric"], summary["metrics"]
    columns = [column for column in (name, "relative_change", "forgetting") if column in metrics]
    budget = "" if summary["budget"] is None else f", budget {summary['budget']}"
    lines = [
        f"Strategy {summary['strategy']}{budget}, seed {summary['seed']}: {name} on the test sets "
        "of all periods after each period; forgetting: how much worse it is on earlier periods than at its best.",
        "",
        "| period | " + " | ".join(column.replace("_", " ") for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    cells = [_cells(column, metrics[column]) for column in columns]
    for k, row in enumerate(zip(*cells, strict=True)):
        mark = "*" if str(k) in summary["missing"] else ""
        lines.append(f"| {k + 1}{mark} | " + " | ".join(row) + " |")
    for period, clients in summary["missing"].items():
        lines += ["", rf"\* After period {int(period) + 1}, measured on {without(clients)}."]
    seconds = ", ".join(f"{phase} {duration(spent)}" for phase, spent in summary["seconds"].items())
    sent = f"{summary['bytes_up'] / 1e6:.1f} MB up, {summary['bytes_down'] / 1e6:.1f} MB down"
    return "\n".join([*lines, "", f"Time: {seconds}. Exchanged: {sent}."]) + "\n"


def _cells(name: str, values: Sequence[float | None]) -> list[str]:
    if name == "relative_change":
        return ["–" if value is None else f"{value:+.1%}" for value in values]
    return column(values)


def runs_table(found: Sequence["Listed"]) -> str:
    """Return a list of runs, with the same decimals for all figures of a metric."""
    lines = ["| run | strategy | budget | seed | state | figure | time |", "|---|---|---|---|---|---|---|"]
    figures: dict[str, str] = {}
    for metric in {run.metric for run in found}:
        some = [run for run in found if run.metric == metric and run.figure is not None]
        figures |= {
            run.name: f"{metric} {text}" for run, text in zip(some, column(r.figure for r in some), strict=True)
        }
    for run in found:
        state = run.state if run.period is None else f"{run.state}, period {run.period + 1}, round {run.round}"
        figure = figures.get(run.name, "") + ("*" if run.missing else "")
        spent = duration(run.seconds) if run.seconds is not None else ""
        cells = (run.name, run.strategy, run.budget, run.seed, state, figure, spent)
        lines.append("| " + " | ".join("" if cell is None else clean(cell) for cell in cells) + " |")
    return "\n".join(lines)


def sweep_table(status: "SweepStatus") -> str:
    """Return the state of all runs as a Markdown table: one row per strategy, one column per budget."""
    budgets = list(dict.fromkeys(planned.budget for planned in status.runs))
    cells: dict[tuple[str, str], list[str]] = {}
    scores = column(status.by_name[planned.name].score for planned in status.runs)
    for planned, score in zip(status.runs, scores, strict=True):
        cells.setdefault((planned.strategy, planned.budget), []).append(_cell(status.by_name[planned.name], score))
    lines = [
        "| strategy | " + " | ".join(f"budget {budget}" if budget else "no budget" for budget in budgets) + " |",
        "|---" * (len(budgets) + 1) + "|",
    ]
    for strategy in dict.fromkeys(planned.strategy for planned in status.runs):
        row = [", ".join(cells.get((strategy, budget), [])) for budget in budgets]
        lines.append(f"| {strategy} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _cell(run: "RunStatus", score: str) -> str:
    """Show a run in a cell: its score, how far it is, or that it failed."""
    if run.state == "finished":
        return score if run.score is not None else "done"
    return {"running": f"{run.done:.0%}", "failed": "failed", "waiting": "·"}[run.state]
