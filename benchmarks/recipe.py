"""The recommended recipe against the best random buffer with plain replay, stream by stream, seed by seed.

    python -m benchmarks.recipe sweeps/remember_slurp sweeps/remember_mnist [-o docs/results/recipe/main.md]

Each folder is a sweep on one stream. Per budget, the random buffer with the best mean is the rival, though it was found
best on the same seeds; that favours the rival. Errors in the table are geometric means over seeds. With e_s the error
(perplexity, or 1 − accuracy) at seed s:

- change: exp(mean of log(e_s recipe / e_s rival)) − 1, with the 95 % interval of Student's t over seeds, and the
  p-value of that mean by Holm's correction over all rows of the table;
- gap closed: Σ_s log(e_s rival / e_s recipe) / Σ_s log(e_s rival / e_s full history), with the interval of the
  jackknife.
"""

import argparse
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from coreplay.errors import InputError
from coreplay.files import write_text
from coreplay.report.compare import Group, group_runs
from coreplay.report.load import ANY, Finished, load_runs
from coreplay.runtime.strategy import ALL

RANDOM = ("naive_uniform", "approximate_uniform", "fixed_proportion", "period_balanced", "reservoir")
METHODS = ["distillation"]  # the continual methods of the recipe
STRATEGY = "period_balanced"


@dataclass(frozen=True)
class Row:
    """One comparison."""

    stream: str
    budget: str
    rival: str
    seeds: int
    rival_error: float
    recipe_error: float
    full_error: float
    change: tuple[float, float, float]  # mean, low, high
    p: float
    gap: tuple[float, float, float]


def errors(runs: dict, lower_is_better: bool) -> dict:
    return {key: run.score if lower_is_better else 1 - run.score for key, run in runs.items()}


def is_plain(run: Finished) -> bool:
    replay = run.config.replay
    return not run.config.continual.methods and replay.mixing == "concatenate" and replay.quota == "none"


def is_recipe(run: Finished) -> bool:
    replay = run.config.replay
    same = run.config.continual.methods == METHODS and replay.mixing == "concatenate" and replay.quota == "none"
    return same and replay.strategy == STRATEGY and not run.config.continual.options


def compared(stream: str, group: Group) -> list[Row]:
    """Return the rows of one stream."""
    first = {label: next(run for run in group.runs if run.label == label) for label in group.labels}
    plain = [k for k, run in first.items() if run.config.replay.strategy in RANDOM and is_plain(run)]
    recipe = next((label for label, run in first.items() if is_recipe(run)), None)
    if recipe is None or not plain:
        raise InputError(f"{stream}: there is no run of the recipe, or none with a random buffer")
    found = []
    for budget in (name for name in group.budgets if name != ANY):
        at = {k: errors(dict(group.all_at(k, budget)), group.lower_is_better) for k in (*plain, recipe, ALL)}
        keys = sorted(set.intersection(*(set(at[k]) for k in (*plain, recipe, ALL) if at[k])))
        if len(keys) < 3 or not at[recipe] or not at[ALL]:
            print(f"{stream}, budget {budget}: left out, with {len(keys)} seeds that all have")
            continue
        logs = {k: np.log([at[k][key] for key in keys]) for k in at if at[k]}
        rival = min((k for k in plain if k in logs), key=lambda k: logs[k].mean())
        found.append(row(stream, budget, rival, logs[rival], logs[recipe], logs[ALL]))
    return found


def row(stream: str, budget: str, rival: str, theirs: np.ndarray, ours: np.ndarray, full: np.ndarray) -> Row:
    difference, n = ours - theirs, len(ours)
    low, high = stats.t.interval(0.95, n - 1, difference.mean(), stats.sem(difference))
    gain, whole = theirs - ours, theirs - full
    leave_out = np.array([np.delete(gain, k).sum() / np.delete(whole, k).sum() for k in range(n)])
    closed = gain.sum() / whole.sum()
    spread = math.sqrt((n - 1) / n * ((leave_out - leave_out.mean()) ** 2).sum()) * stats.t.ppf(0.975, n - 1)
    return Row(
        stream,
        budget,
        rival,
        n,
        *(float(np.exp(each.mean())) for each in (theirs, ours, full)),
        change=tuple(float(np.expm1(value)) for value in (difference.mean(), low, high)),
        p=float(stats.ttest_1samp(difference, 0).pvalue),
        gap=(closed, closed - spread, closed + spread),
    )


def holm(p: Sequence[float]) -> list[float]:
    """Return the p-values by Holm's correction.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, k in enumerate(sorted(range(len(p)), key=lambda k: p[k])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[k]))
        adjusted[k] = largest
    return adjusted


def table(rows: Sequence[Row]) -> str:
    names = "stream | kept | seeds | best random, plain replay | recipe | full history"
    lines = [f"| {names} | change (95 %) | p (Holm) | gap closed (95 %) |", "| --- " * 9 + "|"]
    for found, p in zip(rows, holm([found.p for found in rows]), strict=True):
        change, low, high = (f"{100 * value:+.0f}" for value in found.change)
        gap, least, most = (f"{100 * value:.0f}" for value in found.gap)
        figures = (
            f"{value:.1f}" if value > 1 else f"{value:.3f}"
            for value in (found.rival_error, found.recipe_error, found.full_error)
        )
        rival, recipe, full = figures
        cells = (found.stream, found.budget, found.seeds, f"{rival} ({found.rival})", recipe, full)
        ends = (f"{change} % ({low} to {high})", f"{p:.2g}", f"{gap} % ({least} to {most})")
        lines.append("| " + " | ".join(map(str, (*cells, *ends))) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for folder in given.folders:
        runs, _ = load_runs([folder])
        for group in group_runs(runs):
            rows += compared(folder.name.removeprefix("remember_"), group)
    text = table(rows)
    print(text, end="")
    if given.output:
        write_text(given.output, text)


if __name__ == "__main__":
    main()
