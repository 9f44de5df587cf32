"""The near-optimality experiment as a person reads it: a table and the distributions of the paper's figures 1 and 4."""

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coreplay.experiments.near_optimality import Result, Row
from coreplay.files import replacing, write_json, write_text

# Okabe and Ito's colours, distinguishable with any kind of colour vision, without the yellow that fades on white
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")


def write(result: Result, folder: Path | str) -> list[Path]:
    """Write results.json, table.md and one figure a pool size (PNG and SVG); return the paths."""
    folder = Path(folder)
    paths = [folder / "results.json", folder / "table.md"]
    write_json(paths[0], result.to_json())
    write_text(paths[1], markdown(result))
    for n in result.config.sizes:
        chart = figure(result, n)
        for suffix in ("png", "svg"):
            paths.append(folder / f"ratios-n{n}.{suffix}")
            with rc_context({"svg.hashsalt": "coreplay"}), replacing(paths[-1]) as temporary:
                chart.savefig(temporary, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
    return paths


def markdown(result: Result) -> str:
    """Return the summary as Markdown, one table a pool size, best method first."""
    config = result.config
    lines = [
        f"Ratio of the objective to the optimum (1 is best); {config.mixture} mixture, N = {config.budget}, "
        f"d = {config.dimension}, {config.repeats} repeats, seed {config.seed}. "
        "Time is the median of one selection from a given gram."
    ]
    for n in config.sizes:
        lines += [
            "",
            f"**n = {n}**",
            "",
            "| method | mean | median | 95 % | optimal | ms |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_cells(row) for row in sorted(_of(result, n), key=lambda row: row.mean)]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> str:
    numbers = f"{row.mean:.4f} | {row.median:.4f} | {row.p95:.4f} | {row.optimal:.1%} | {row.milliseconds:.3f}"
    return f"| {row.method} | {numbers} |"


def _of(result: Result, n: int) -> list[Row]:
    return [row for row in result.rows if row.n == n]


def figure(result: Result, n: int) -> Figure:
    """Draw the distribution of ratios of each method as a filled outline, best method on top, median marked."""
    methods = result.config.methods
    order = sorted(range(len(methods)), key=lambda k: result.ratios[n][k].mean())
    chart = Figure(figsize=(7.0, 0.55 * len(order) + 1.3), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.add_subplot()
    most = float(np.quantile(result.ratios[n], 0.995))
    edges = np.geomspace(1.0, max(most, 1.05), 90)
    for level, k in enumerate(reversed(order)):
        ratios = result.ratios[n][k]
        counts, _ = np.histogram(ratios, edges)
        heights = level + 0.85 * counts / max(counts.max(), 1)
        colour = COLOURS[k % len(COLOURS)]
        axes.stairs(heights, edges, baseline=level, fill=True, color=colour, alpha=0.55)
        axes.stairs(heights, edges, baseline=level, color=colour)
        median = float(np.median(ratios))
        axes.plot([median, median], [level, level + 0.9], color="black", linewidth=1.2)
        axes.annotate(f" {median:.3f}", (median, level + 0.9), ha="left", va="top", fontsize=8)
    axes.set_yticks([level + 0.3 for level in range(len(order))], [methods[k] for k in reversed(order)])
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    ticks = [t for t in (1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 10, 20) if t <= edges[-1]]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("objective / optimum (1 is best; the line is the median)")
    axes.set_title(f"N = {result.config.budget} of n = {n}, {result.config.mixture} mixture", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return chart
