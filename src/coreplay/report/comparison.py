"""A comparison of strategies as a person reads it: a table, a sentence, and the figure over the periods."""

from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coreplay.experiments.comparison import ComparisonResult, Outcome
from coreplay.federated.strategy import ALL, NONE
from coreplay.files import replacing, write_json, write_text

# Okabe and Ito's colours, distinguishable with any kind of colour vision
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
FIXED = {NONE: "#000000", ALL: "#999999"}
RANDOM = "naive_uniform"


def write(result: ComparisonResult, folder: Path | str) -> list[Path]:
    """Write results.json, table.md and the figure (PNG and SVG); return the paths."""
    folder = Path(folder)
    paths = [folder / "results.json", folder / "table.md"]
    write_json(paths[0], result.to_json())
    write_text(paths[1], markdown(result))
    chart = figure(result)
    for suffix in ("png", "svg"):
        paths.append(folder / f"comparison.{suffix}")
        with rc_context({"svg.hashsalt": "coreplay"}), replacing(paths[-1]) as temporary:
            chart.savefig(temporary, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
    return paths


def markdown(result: ComparisonResult) -> str:
    """Return what the table means, the table, and what is seen in it."""
    config, seeds = result.comparison.config, result.comparison.seeds
    several = len(seeds) > 1
    better = "lower" if result.lower_is_better else "higher"
    relative = NONE in result.comparison.strategies
    columns = ["strategy", result.metric, *([f"change to {NONE}"] if relative else []), "forgetting", "seconds"]
    lines = [
        f"{result.metric.capitalize()} is of the model after the last period on the test sets of all periods "
        f"({better} is better), forgetting how much worse it is on the periods seen than the best model before it was. "
        f"All runs have the same stream, first model and batches; a client keeps {_budget(result)} old samples; "
        + (f"means over seeds {', '.join(map(str, seeds))}" if several else f"seed {seeds[0]}")
        + (", in brackets the change of each." if several and relative else "."),
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
    ]
    lines += [_row(result, outcome, relative=relative) for outcome in result.outcomes]
    versions = result.versions
    lines += [
        "",
        seen(result),
        "",
        f"Stream {config.stream.source}, task {config.task.name}, coreplay {versions['coreplay']}, torch "
        f"{versions['torch']}; seconds are those that a run took when it was carried out.",
    ]
    return "\n".join(lines) + "\n"


def _budget(result: ComparisonResult) -> str:
    replay = result.comparison.config.replay
    return f"{replay.share:.0%} of its" if replay.share else f"{replay.budget}"


def _row(result: ComparisonResult, outcome: Outcome, *, relative: bool) -> str:
    cells = [f"`{outcome.strategy}`", f"{fmean(outcome.final):.4g}"]
    if relative:
        changes = result.changes(outcome.strategy)
        each = f" ({', '.join(f'{change:+.1%}' for change in changes)})" if len(changes) > 1 else ""
        cells.append("" if outcome.strategy == NONE else f"{fmean(changes):+.1%}{each}")
    cells += [f"{fmean(outcome.forgetting):.3g}", f"{fmean(outcome.seconds):.1f}"]
    return "| " + " | ".join(cells) + " |"


def seen(result: ComparisonResult) -> str:
    """Say what the table shows and what it does not: who helps, and whether any choice beats a random one."""
    names = result.comparison.strategies
    sign = 1 if result.lower_is_better else -1
    buffers = [name for name in names if name not in (NONE, ALL)]
    said = []
    if NONE in names:
        changes = {name: [sign * change for change in result.changes(name)] for name in names if name != NONE}
        helpful = [name for name in changes if max(changes[name]) < 0]
        useless = [name for name in changes if min(changes[name]) >= 0]
        unclear = [name for name in changes if name not in helpful + useless]
        always = "in every seed" if len(result.comparison.seeds) > 1 else "in this one seed"
        if helpful:
            said.append(f"{_listed(helpful)} {'help' if len(helpful) > 1 else 'helps'} {always}")
        if unclear:
            said.append(f"the seeds disagree about {_listed(unclear)}")
        if useless:
            said.append(f"{_listed(useless)} {'do' if len(useless) > 1 else 'does'} not help")
    if RANDOM in buffers and len(buffers) > 1:
        chosen = {name: [sign * c for c in result.changes(name, RANDOM)] for name in buffers if name != RANDOM}
        best = min(chosen, key=lambda name: fmean(chosen[name]))
        if max(chosen[best]) < 0:
            said.append(f"`{best}` is {-fmean(chosen[best]):.1%} better than a random choice of the same size")
        else:
            said.append("no choice is better than a random one of the same size in every seed")
    few = len(result.comparison.seeds)
    caution = f"With {few} seed{'s' if few > 1 else ''} differences of a few percent between buffers prove nothing."
    text = "; ".join(said)
    return f"What is seen: {text}. {caution}" if text else caution


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]


def figure(result: ComparisonResult) -> Figure:
    """Draw the figure after each period, and beside it the change to no replay at the end, a dot a seed."""
    chart = Figure(figsize=(9.6, 4.0), layout="constrained")
    FigureCanvasAgg(chart)
    relative = NONE in result.comparison.strategies
    left, *right = chart.subplots(1, 2 if relative else 1, squeeze=False)[0]
    colours = _colours(result.comparison.strategies)
    for outcome in result.outcomes:
        means = [fmean(values) for values in zip(*outcome.figures, strict=True)]
        periods = range(1, len(means) + 1)
        style = "--" if outcome.strategy in FIXED else "-"
        left.plot(
            periods, means, style, marker="o", markersize=4, color=colours[outcome.strategy], label=outcome.strategy
        )
    left.set_xticks(list(periods))
    left.set_xlabel("after period")
    left.set_ylabel(f"{result.metric} on all periods' test sets")
    left.legend(frameon=False, fontsize=8)
    if relative:
        _changes(result, right[0], colours)
    for axes in (left, *right):
        axes.spines[["top", "right"]].set_visible(False)
    return chart


def _changes(result: ComparisonResult, axes: Axes, colours: dict[str, str]) -> None:
    names = [name for name in result.comparison.strategies if name != NONE][::-1]
    for level, name in enumerate(names):
        changes = [100 * change for change in result.changes(name)]
        axes.barh(level, fmean(changes), color=colours[name], alpha=0.5, height=0.6)
        axes.plot(changes, [level] * len(changes), "o", color=colours[name], markersize=5)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"change of {result.metric} to no replay, % (a dot a seed)")


def _colours(names: tuple[str, ...]) -> dict[str, str]:
    others = [name for name in names if name not in FIXED]
    return FIXED | {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(others)}
