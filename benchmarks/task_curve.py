"""Central training lowers the perplexity: all clients and periods at one place, nothing forgotten.

Beside the curve stands the perplexity of always guessing by piece frequency, which a model that learns must fall below.

    python -m benchmarks.task_curve [NAME=STREAM.jsonl.gz ...] --output docs/results
"""

import argparse
import math
import time
from collections import Counter
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.common import header
from coreplay.data import FederatedStream, Samples, load
from coreplay.files import atomic_write, write_text
from coreplay.tasks import Task, batches, evaluate, make
from coreplay.tasks.masked_lm import MaskedLM

BATCH, TESTS, POINTS = 64, 1500, 2
SIZES: dict[str, tuple[dict[str, int], int, float]] = {  # sizes, epochs, learning rate
    "tinybert": ({"num_layers": 4, "hidden_size": 312, "num_heads": 12, "intermediate_size": 1200}, 3, 5e-4),
    "small": ({"num_layers": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 256}, 4, 2e-3),
}
Curve = list[tuple[float, float]]


def pooled(stream: FederatedStream, split: str) -> Samples:
    return Samples.joined([stream.of_period(t, split) for t in range(stream.periods)])


def by_frequency(task: MaskedLM, train: Samples, test: Samples) -> float:
    """Return the test perplexity of the training frequencies of pieces, each count plus one."""
    words = task.vocabulary
    ids, _ = words.encode(train.texts, task.max_length)
    counts = Counter(ids[(ids != words.pad) & (ids != words.cls) & (ids != words.sep)].tolist())
    total = sum(counts.values()) + len(words)
    targets = task.collate(test)["targets"]
    hidden = targets[targets != -100].tolist()
    return math.exp(-sum(math.log((counts[k] + 1) / total) for k in hidden) / len(hidden))


def train(task: Task, given: Samples, test: Samples, epochs: int, rate: float) -> Curve:
    """Train with AdamW and a linear fall of the rate; return (epoch, test perplexity)."""
    torch.manual_seed(0)
    model = task.model(seed=0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    each = -(-len(given) // BATCH)
    curve = [(0.0, evaluate(task, model, test))]
    step = 0
    for epoch in range(epochs):
        for batch in batches(task, given, BATCH, seed=0, epoch=epoch):
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 100) * (1 - step / (epochs * each))
            optimiser.zero_grad()
            task.loss(model, batch).backward()
            optimiser.step()
            step += 1
            if step % -(-each // POINTS) == 0 or step == epochs * each:
                curve.append((step / each, evaluate(task, model, test)))
                print(f"  epoch {curve[-1][0]:.2f}: perplexity {curve[-1][1]:.2f}", flush=True)
    return curve


def drawn(curves: dict[str, tuple[Curve, float]], title: str, path: Path) -> None:
    chart = Figure(figsize=(7.0, 4.0), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.add_subplot()
    for (name, (curve, frequency)), colour in zip(curves.items(), ("#0072B2", "#D55E00", "#009E73"), strict=False):
        axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, color=colour, label=name)
        axes.axhline(frequency, linestyle=":", color=colour, label=f"{name}: by frequency")
    axes.set_yscale("log")
    axes.set(xlabel="epoch", ylabel="test perplexity, all periods", title=title)
    axes.legend(fontsize=8)
    with atomic_write(path) as temporary:
        chart.savefig(temporary, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", nargs="*", help="NAME=FILE, beside the synthetic stream")
    parser.add_argument("--size", choices=SIZES, default="tinybert")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes, epochs, rate = SIZES[arguments.size]
    shape = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in sizes.items())
    header("torch", "transformers")
    streams = {"synthetic": load("synthetic", seed=0)}
    for given in arguments.streams:
        name, _, path = given.partition("=")
        streams[name] = load("files", path=path)
    lines = ["# Central training lowers perplexity", ""]
    lines += [
        f"Made by `python -m benchmarks.task_curve NAME=FILE ... --size {arguments.size}`: BERT ({shape}), random"
    ]
    lines += [
        f"start, {epochs} epochs of AdamW, batches of {BATCH}, vocabulary of the first period; test perplexity over all"
    ]
    lines += [f"periods ({TESTS} samples, fixed masks). *By frequency* always guesses by count.", ""]
    lines += ["| stream | train samples | pieces | at the start | by frequency | after training | seconds |"]
    lines += ["|---|---|---|---|---|---|---|"]
    curves: dict[str, tuple[Curve, float]] = {}
    for name, stream in streams.items():
        task = make("masked_lm", stream, vocabulary_size=4096, **sizes)
        assert isinstance(task, MaskedLM)
        given, test = pooled(stream, "train"), pooled(stream, "test")
        test = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:TESTS].numpy()]
        frequency = by_frequency(task, given, test)
        print(f"{name}: {stream}, {len(task.vocabulary)} pieces, by frequency {frequency:.2f}", flush=True)
        began = time.perf_counter()
        curve = train(task, given, test, epochs, rate)
        seconds = time.perf_counter() - began
        curves[name] = curve, frequency
        figures = f"{curve[0][1]:.0f} | {frequency:.1f} | {curve[-1][1]:.2f} | {seconds:.0f}"
        lines.append(f"| {name} | {len(given)} | {len(task.vocabulary)} | {figures} |")
    drawn(curves, f"BERT ({shape}), central training, random start", arguments.output / "task_curve.png")
    lines += ["", "![test perplexity by epoch](task_curve.png)"]
    write_text(arguments.output / "task_curve.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
