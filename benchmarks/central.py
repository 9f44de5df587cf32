"""A central model on the same data: what federated training is measured against.

    python -m benchmarks.central benchmarks/sweeps/remember_slurp.toml --seeds 100 101

Takes stream, task and first model of a sweep's runs, puts the training samples of all clients and periods together, and
trains with AdamW and a rate that falls to zero. Prints the figure on all test samples, as a run reports it, for each
learning rate and number of epochs, and the best of them.
"""

import argparse
import math
import statistics
import warnings
from pathlib import Path

import torch

from benchmarks.common import header
from coreplay.data import FederatedStream, Samples
from coreplay.experiments.sweep import Sweep
from coreplay.runtime import Config, prepare
from coreplay.tasks import Task, batches, evaluate


def together(stream: FederatedStream, split: str) -> Samples:
    """Return the samples of all periods."""
    return Samples.joined([stream.of_period(period, split) for period in range(stream.periods)])


def trained(task: Task, train: Samples, test: Samples, seed: int, rate: float, epochs: int, size: int) -> float:
    """Train a new model and return its figure."""
    torch.manual_seed(seed)
    model = task.model(seed)
    model.train()
    steps = epochs * math.ceil(len(train) / size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(epochs):
        for batch in batches(task, train, size, seed=seed, epoch=epoch):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return evaluate(task, model, test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.003])
    parser.add_argument("--epochs", type=int, nargs="+", default=[20, 40])
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    header("torch", "transformers")
    torch.set_num_threads(1)
    found: dict[tuple[float, int], list[float]] = {}
    for seed in given.seeds:
        sweep = Sweep.load(given.sweep)
        config: Config = next(iter(sweep.model_copy(update={"seeds": [seed]}).runs)).config
        things = prepare(config)
        train, test = (together(things.stream, split) for split in ("train", "test"))
        print(f"seed {seed}: {len(train)} training and {len(test)} test samples", flush=True)
        for rate in given.rates:
            for epochs in given.epochs:
                figure = trained(things.task, train, test, seed, rate, epochs, given.batch_size)
                found.setdefault((rate, epochs), []).append(figure)
                print(f"  rate {rate:g}, {epochs} epochs: {things.task.metric.name} {figure:.3f}", flush=True)
    lower = things.task.metric.lower_is_better
    (rate, epochs), figures = min(found.items(), key=lambda one: statistics.mean(one[1]) * (1 if lower else -1))
    print(f"best mean: {statistics.mean(figures):.3f} with rate {rate:g} and {epochs} epochs")


if __name__ == "__main__":
    main()
