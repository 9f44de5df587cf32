"""A start for the comparison on commits: a model trained on the first period of clients that take no part in it.

Half of the clients, drawn by a fixed seed, are held out. A vocabulary and a TinyBERT are trained on their first period
in the ordinary way, all texts in one place; the other half is saved as a stream, from which the runs draw their
clients. So no client of a run, and no later period, has been seen before.

    python -m benchmarks.held_out -o FOLDER [--data ../shared/data/apache_commits/data.jsonl.gz] [--epochs 40]

FOLDER gets `start` (model and vocabulary) and `stream.parquet`. Stopped on the way, the same command goes on after the
last whole epoch.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import header
from coreplay.data import load, save
from coreplay.federated.algorithm import make_algorithm
from coreplay.federated.config import FederatedConfig
from coreplay.federated.flat import FlatModel
from coreplay.federated.training import train
from coreplay.files import write_text
from coreplay.tasks import evaluate, make

COLUMNS = {"client": "client_id", "text": "text", "timestamp": "timestamp", "period": "period", "split": "split"}
SEED = 2026


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/apache_commits/data.jsonl.gz"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--longest", type=int, default=24)
    given = parser.parse_args()
    header("torch", "transformers")
    stream = load("files", path=given.data, columns=COLUMNS)
    order = np.random.default_rng(SEED).permutation(len(stream.clients))
    half = len(order) // 2
    held_out, others = (stream.only([stream.clients[k] for k in sorted(part)]) for part in np.split(order, [half]))
    if not (given.output / "stream.parquet").exists():
        given.output.mkdir(parents=True, exist_ok=True)
        save(others, given.output / "stream.parquet")
    start, done = given.output / "start", given.output / "epochs.json"
    figures: list[float] = json.loads(done.read_text()) if done.exists() else []
    size = {"vocabulary_size": 4096, "longest": given.longest}
    task = make("masked_lm", held_out, **({"start": str(start), "longest": given.longest} if figures else size))
    flat = FlatModel(task.model(SEED))
    samples, test = held_out.of_period(0), held_out.of_period(0, "test")
    print(f"{half} clients held out, {len(samples)} texts of their first period, {len(test)} to test on", flush=True)
    config = FederatedConfig(optimizer="adamw", learning_rate=0.0005, batch_size=32)
    algorithm = make_algorithm("fedavg", {})
    began = time.monotonic()
    for epoch in range(len(figures), given.epochs):
        train(flat, task, samples, algorithm, config, seed=SEED, client="held out", period=0, round=epoch)
        with torch.no_grad():
            figures.append(evaluate(task, flat.model, test))
        task.vocabulary.save(start)
        flat.model.save_pretrained(start)
        write_text(done, json.dumps(figures))
        print(f"epoch {epoch + 1}: perplexity {figures[-1]:.1f}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
