"""A stream as a person sees it: a table of its measures, and a figure of sizes, drift and heterogeneity."""

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coreplay.data.describe import Description, Details
from coreplay.files import replacing


def markdown(name: str, text: Description) -> str:
    """Return the measures as Markdown tables."""
    sizes = text.client_sizes
    spread = " / ".join(f"{sizes[key]:g}" for key in ("least", "quarter", "median", "three_quarters", "most"))
    rows = [
        ("samples (of them test)", f"{text.samples} ({text.test_samples})"),
        ("clients", f"{text.clients}"),
        ("periods", f"{text.periods}"),
        ("distinct contents", f"{text.distinct}"),
        ("words: mean a sample, different", f"{text.mean_words:.1f}, {text.vocabulary}"),
        ("labels", f"{text.labels}"),
        ("samples a client: least / quarter / median / three quarters / most", spread),
        ("periods in which the median client is active", f"{text.median_periods_active:g}"),
        ("clients with at least 5 samples in every period", f"{text.clients_with_5_in_every_period}"),
    ]
    lines = [f"**{name}**", "", "| measure | value |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]
    neighbours = text.drift_neighbours
    mean = sum(neighbours) / len(neighbours) if neighbours else 0.0
    divergences = [
        ("drift, first against last period", text.drift_first_last, text.drift_first_last_random),
        ("drift, neighbouring periods (mean)", mean, text.drift_neighbours_random),
        ("heterogeneity, a client against all others (mean)", text.heterogeneity, text.heterogeneity_random),
    ]
    lines += ["", "| Jensen-Shannon divergence (bits) | measured | random split |", "|---|---|---|"]
    lines += [f"| {what} | {value:.3f} | {chance:.3f} |" for what, value, chance in divergences]
    lines += ["", f"{text.heterogeneity_higher:.0%} of the clients differ more than random ones of their size do.", ""]
    lines += ["| period | samples | clients | drift to the next |", "|---|---|---|---|"]
    for t, (samples, clients) in enumerate(zip(text.samples_per_period, text.clients_per_period, strict=True)):
        lines.append(f"| {t} | {samples} | {clients} | {f'{neighbours[t]:.3f}' if t < len(neighbours) else ''} |")
    return "\n".join(lines) + "\n"


def write(name: str, text: Description, details: Details, path: Path) -> None:
    """Write the figure as PNG or SVG, by the suffix of the path."""
    chart = figure(name, text, details)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with rc_context({"svg.hashsalt": "coreplay"}), replacing(path) as temporary:
        chart.savefig(temporary, dpi=110, metadata=metadata)


def figure(name: str, text: Description, details: Details) -> Figure:
    """Draw clients x periods, samples a period, drift between all periods, and how far clients are from the others."""
    chart = Figure(figsize=(10.0, 7.0), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.subplots(2, 2)
    order = np.argsort(-details.counts.sum(axis=1), kind="stable")
    shown = axes[0, 0].imshow(
        np.log10(1 + details.counts[order]), aspect="auto", interpolation="nearest", cmap="cividis"
    )
    chart.colorbar(shown, ax=axes[0, 0], label="log10(1 + samples)")
    axes[0, 0].set(xlabel="period", ylabel="client, largest first", title="samples by client and period")
    periods = np.arange(text.periods)
    axes[0, 1].bar(periods, text.samples_per_period, color="#0072B2")
    axes[0, 1].set(xlabel="period", ylabel="samples", title="samples by period")
    other = axes[0, 1].twinx()
    other.plot(periods, text.clients_per_period, color="#D55E00", marker="o")
    other.set_ylabel("active clients", color="#D55E00")
    other.set_ylim(bottom=0)
    shown = axes[1, 0].imshow(text.drift_matrix, cmap="cividis", vmin=0)
    chart.colorbar(shown, ax=axes[1, 0], label="bits")
    axes[1, 0].set(xlabel="period", ylabel="period")
    axes[1, 0].set_title(f"drift (random split: {text.drift_neighbours_random:.3f})")
    edges = np.linspace(0, 1, 41)
    for values, colour, label in (
        (details.of_clients_random, "#999999", f"random split, mean {text.heterogeneity_random:.3f}"),
        (details.of_clients, "#0072B2", f"clients, mean {text.heterogeneity:.3f}"),
    ):
        axes[1, 1].hist(values, edges, color=colour, alpha=0.6, label=label)
    axes[1, 1].set(xlabel="Jensen-Shannon divergence to all others (bits)", ylabel="clients", title="heterogeneity")
    axes[1, 1].legend(fontsize=8)
    chart.suptitle(name)
    return chart
