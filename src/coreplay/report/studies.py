"""Tables and figures of the near-optimality experiment, the coordination study and the description of a stream."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from coreplay.data.describe import Description, Details
from coreplay.experiments.coordination_study import StudyResult
from coreplay.experiments.near_optimality import Result
from coreplay.files import write_json, write_text
from coreplay.report.charts import Axis, Bars, Chart, Figure, Heatmap, Histograms, Lines, Panel, Series, style
from coreplay.report.renderer import save_figure
from coreplay.report.text import markdown_table

SELECTIONS = "selections.json"  # what given clients keep after a coordination study
TICKS = (1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 10, 20)


def study_files(*figures: str) -> list[str]:
    """Return the names of the files that `write_study` writes."""
    return ["results.json", "table.md", *(f"{name}.{suffix}" for name in figures for suffix in ("png", "svg"))]


def write_study(result: Result | StudyResult, folder: Path | str) -> tuple[str, list[Path]]:
    """Write the results, the table and the figures of a study; return the table as Markdown, and the paths."""
    if isinstance(result, Result):
        table = near_optimality_table(result)
        figures = [near_optimality_figure(result, n) for n in result.config.sizes]
    else:
        table, figures = coordination_table(result), [coordination_figure(result)]
    paths = [Path(folder) / name for name in study_files(*(figure.name for figure in figures))]
    write_json(paths[0], result.to_json())
    write_text(paths[1], table)
    for k, figure in enumerate(figures):
        save_figure(figure, *paths[2 + 2 * k : 4 + 2 * k])
    if isinstance(result, StudyResult) and result.selections:
        paths.append(Path(folder) / SELECTIONS)
        write_json(paths[-1], result.selections)
    return table, paths


def near_optimality_table(result: Result) -> str:
    """Return the summary as Markdown, one table per pool size, best method first."""
    config = result.config
    parts = [
        f"Ratio of the objective to the optimum (1 is best); {config.mixture} mixture, N = {config.budget}, "
        f"d = {config.dimension}, {config.repeats} repeats, seed {config.seed}. "
        "Time is the median of one selection from a given gram.\n"
    ]
    for n in config.sizes:
        rows = sorted((row for row in result.rows if row.n == n), key=lambda row: row.mean)
        cells = [
            [r.method, f"{r.mean:.4f}", f"{r.median:.4f}", f"{r.p95:.4f}", f"{r.optimal:.1%}", f"{r.milliseconds:.3f}"]
            for r in rows
        ]
        columns = ("method", "mean", "median", "95 %", "optimal", "ms")
        parts.append(f"**n = {n}**\n\n{markdown_table(columns, cells)}")
    return "\n".join(parts)


def near_optimality_figure(result: Result, n: int) -> Figure:
    """Show the distribution of ratios of each method, best method on top (the paper's figures 1 and 4)."""
    ratios = dict(zip(result.config.methods, result.ratios[n].tolist(), strict=True))
    edges = np.geomspace(1.0, max(float(np.quantile(result.ratios[n], 0.995)), 1.05), 90)
    chart = Histograms(
        Axis("objective / optimum (1 is best; the line is the median)", scale="log"),
        Axis(""),
        dict(sorted(ratios.items(), key=lambda item: float(np.mean(item[1])))),
        edges.tolist(),
        [tick for tick in TICKS if tick <= edges[-1]],
    )
    title = f"N = {result.config.budget} of n = {n}, {result.config.mixture} mixture"
    return Figure(f"ratios-n{n}", title, "", (Panel(chart),))


def coordination_table(result: StudyResult) -> str:
    """Return the outcomes as a Markdown table, one row per number of rounds."""
    config = result.config
    pool = f"up to {config.pool}" if result.selections else str(config.pool)
    bounds = f" ({result.lower:.6g} to {result.upper:.6g})" if result.lower else ""
    intro = (
        f"Objective ‖Σ selected unit gradients‖² of {config.clients} clients, {config.budget} of {pool} samples "
        f"each, d = {config.dimension}, seed {config.seed}, and its ratio to the joint relaxed optimum{bounds}. "
        "Bytes are per client, up and down."
    )
    rows = []
    for rounds in config.rounds:
        found = [next(o for o in result.outcomes if (o.method, o.rounds) == (m, rounds)) for m in config.methods]
        cells = [text for o in found for text in (f"{o.objective:.6g}", "–" if o.ratio is None else f"{o.ratio:.3f}")]
        sizes = [f"{size / config.clients / 1000:.1f}" for size in (found[-1].bytes_up, found[-1].bytes_down)]
        rows.append([str(rounds), *cells, *sizes])
    columns = ["rounds", *(name for method in config.methods for name in (method, "ratio")), "kB up", "kB down"]
    return f"{intro}\n\n{markdown_table(columns, rows)}"


def coordination_figure(result: StudyResult) -> Figure:
    """Show the ratio to the lower bound by number of rounds (the objective itself if the bound is 0)."""
    config, bounded = result.config, result.lower > 0
    series = []
    for k, method in enumerate(config.methods):
        points = {
            o.rounds: [o.objective / (result.lower if bounded else 1.0)] for o in result.outcomes if o.method == method
        }
        series.append(Series.of(method, style(k), points))
    chart = Lines(
        Axis("rounds (one vector up and one down per client)", scale="symlog"),
        Axis("objective / joint relaxed optimum" if bounded else "objective"),
        tuple(series),
        (1.0, "joint relaxed optimum") if bounded else None,
    )
    title = f"{config.clients} clients, {config.budget} of {config.pool} samples each, d = {config.dimension}"
    return Figure("convergence", title, "", (Panel(chart),))


def stream_table(name: str, text: Description) -> str:
    """Return the measures of a stream as Markdown tables."""
    sizes = text.client_sizes
    quantiles = " / ".join(f"{sizes[key]:g}" for key in ("least", "quarter", "median", "three_quarters", "most"))
    measures = [
        ("samples (of which test)", f"{text.samples} ({text.test_samples})"),
        ("clients", f"{text.clients}"),
        ("periods", f"{text.periods}"),
        ("distinct contents", f"{text.distinct}"),
        ("words: mean per sample, distinct", f"{text.mean_words:.1f}, {text.vocabulary}"),
        ("labels", f"{text.labels}"),
        ("samples per client: minimum / first quartile / median / third quartile / maximum", quantiles),
        ("periods in which the median client is active", f"{text.median_periods_active:g}"),
        ("clients with at least 5 samples in every period", f"{text.clients_with_5_in_every_period}"),
    ]
    drift = text.drift_neighbours
    mean = sum(drift) / len(drift) if drift else 0.0
    divergences = [
        ("drift, first against last period", text.drift_first_last, text.drift_first_last_random),
        ("drift, neighbouring periods (mean)", mean, text.drift_neighbours_random),
        ("heterogeneity, one client against all others (mean)", text.heterogeneity, text.heterogeneity_random),
    ]
    periods = zip(text.samples_per_period, text.clients_per_period, (*map("{:.3f}".format, drift), ""), strict=True)
    parts = [
        f"**{name}**\n",
        markdown_table(("measure", "value"), measures),
        markdown_table(
            ("Jensen-Shannon divergence (bits)", "measured", "random split"),
            [(what, f"{value:.3f}", f"{chance:.3f}") for what, value, chance in divergences],
        ),
        f"{text.heterogeneity_higher:.0%} of the clients differ more from the others than random clients of their "
        "size.\n",
        markdown_table(
            ("period", "samples", "clients", "drift to the next"),
            [(str(t), str(samples), str(clients), gap) for t, (samples, clients, gap) in enumerate(periods)],
        ),
    ]
    return "\n".join(parts)


def stream_figure(name: str, text: Description, details: Details) -> Figure:
    """Show samples by client and period, drift between all periods, and how much clients differ from the others."""
    counts = np.log10(1 + details.counts[np.argsort(-details.counts.sum(axis=1), kind="stable")])
    periods = _numbers(text.periods)
    drift = np.asarray(text.drift_matrix, dtype=float)
    period = Axis("period")
    charts: dict[str, Chart] = {
        "samples by client and period": Heatmap(
            period,
            Axis("client, largest first"),
            Axis("log10(1 + samples)"),
            periods,
            _numbers(len(counts)),
            counts.tolist(),
            (0.0, float(counts.max(initial=0.0))),
        ),
        "samples by period": _bars(Axis("samples"), periods, text.samples_per_period),
        "active clients by period": _bars(Axis("clients"), periods, text.clients_per_period),
        f"drift (random split: {text.drift_neighbours_random:.3f})": Heatmap(
            period, period, Axis("bits"), periods, periods, drift.tolist(), (0.0, float(drift.max(initial=0.0)))
        ),
        f"heterogeneity (mean {text.heterogeneity:.3f}, random split {text.heterogeneity_random:.3f})": Histograms(
            Axis("Jensen-Shannon divergence to all others (bits)"),
            Axis(""),
            {"clients": details.of_clients.tolist(), "random split": details.of_clients_random.tolist()},
            np.linspace(0, 1, 41).tolist(),
        ),
    }
    return Figure("stream", name, "", tuple(Panel(chart, name=title) for title, chart in charts.items()))


def _bars(y: Axis, periods: tuple[str, ...], values: Iterable[float]) -> Bars:
    points = {t: [value] for t, value in zip(periods, values, strict=True)}
    return Bars(Axis("period"), y, periods, (Series.of("", style(0), points),))


def _numbers(many: int) -> tuple[str, ...]:
    return tuple(map(str, range(many)))
