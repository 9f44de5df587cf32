"""The coordination experiment as a person reads it: a table and how the objective falls with the rounds."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coreplay.experiments.coordination import Outcome, StudyResult
from coreplay.files import replacing, write_json, write_text

NAMES = ("results.json", "table.md", "convergence.png", "convergence.svg", "selections.json")
COLOURS = {"alternating": "#E69F00", "corrective": "#0072B2"}
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def write(result: StudyResult, folder: Path | str) -> list[Path]:
    """Write results.json, table.md, the convergence figure and the selections of given clients; return the paths."""
    folder = Path(folder)
    paths = [folder / name for name in NAMES[:-1]]
    write_json(paths[0], result.to_json())
    write_text(paths[1], markdown(result))
    chart = figure(result)
    for path in paths[2:]:
        with rc_context({"svg.hashsalt": "coreplay"}), replacing(path) as temporary:
            chart.savefig(temporary, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    if result.selections:  # of clients that were given
        paths.append(folder / NAMES[-1])
        write_json(paths[-1], result.selections)
    return paths


def markdown(result: StudyResult) -> str:
    """Return the outcomes as a Markdown table, one row per number of rounds."""
    config = result.config
    pool = f"up to {config.pool}" if result.selections else str(config.pool)
    optimum = "the joint relaxed optimum" + (f" ({result.lower:.6g} to {result.upper:.6g})" if result.lower else "")
    lines = [
        f"Objective ‖Σ selected unit gradients‖² of {config.clients} clients, {config.budget} of {pool} samples "
        f"each, d = {config.dimension}, seed {config.seed}, and its ratio to {optimum}. "
        "Bytes are per client, up and down.",
        "",
        "| rounds | " + " | ".join(f"{method} | ratio" for method in config.methods) + " | kB up | kB down |",
        "|---|" + "---|---|" * len(config.methods) + "---|---|",
    ]
    for rounds in config.rounds:
        row = [_of(result, method, rounds) for method in config.methods]
        cells = " | ".join(f"{o.objective:.6g} | {_ratio(o)}" for o in row)
        up, down = (getattr(row[-1], name) / config.clients / 1000 for name in ("bytes_up", "bytes_down"))
        lines.append(f"| {rounds} | {cells} | {up:.1f} | {down:.1f} |")
    return "\n".join(lines) + "\n"


def _of(result: StudyResult, method: str, rounds: int) -> Outcome:
    return next(o for o in result.outcomes if (o.method, o.rounds) == (method, rounds))


def _ratio(outcome: Outcome) -> str:
    return "–" if outcome.ratio is None else f"{outcome.ratio:.3f}"


def figure(result: StudyResult) -> Figure:
    """Draw the ratio to the lower bound over the number of rounds (the objective itself if that bound is 0)."""
    chart = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.add_subplot()
    config = result.config
    unit = result.lower if result.lower > 0 else 1.0
    others = iter(OTHERS * len(config.methods))
    for method in config.methods:
        rows = [_of(result, method, rounds) for rounds in config.rounds]
        colour = COLOURS.get(method) or next(others)
        heights = [o.objective / unit for o in rows]
        axes.plot(config.rounds, heights, "o-", color=colour, markersize=4)
        axes.annotate(
            method, (config.rounds[-1], heights[-1]), xytext=(8, -3), textcoords="offset points", color=colour
        )
    if result.lower > 0:
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.annotate("joint relaxed optimum", (0, 1.0), xytext=(2, -11), textcoords="offset points", fontsize=8)
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(config.rounds, [str(rounds) for rounds in config.rounds])
    axes.minorticks_off()
    axes.set_xlim(-0.15, 2.2 * max(config.rounds[-1], 1))
    axes.margins(y=0.12)
    axes.set_xlabel("rounds (one vector up and one down for each client)")
    axes.set_ylabel("objective / joint relaxed optimum" if result.lower > 0 else "objective")
    axes.set_title(
        f"{config.clients} clients, {config.budget} of {config.pool} samples each, d = {config.dimension}", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    return chart
