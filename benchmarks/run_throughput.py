"""Training in worker processes against bare steps, and two workers against one: python -m benchmarks.run_throughput.

`--small` takes a BERT of 2 layers and width 96, whose steps are short, so that all else weighs more.

Both sides train TinyBERT on the same batches of the same clients with the same optimiser. The bare side is a loop over
batches made beforehand: forward, backward, torch's optimiser step, in as many processes, each with one thread and half
of the batches; no clients, no sums, no tokenising. Sides in turns; medians over repeats.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import header, train_round
from coreplay.runtime import Config, ProcessesEngine, prepare
from coreplay.tasks import batches

SMALL = {"num_layers": 2, "hidden_size": 96, "num_heads": 4, "intermediate_size": 192}


def config(clients: int, samples: int, words: int, small: bool) -> Config:
    sizes = {"vocabulary_size": words, "max_length": 32} | (SMALL if small else {})
    return Config.make(
        {
            "stream": {"options": {"num_clients": clients, "num_periods": 1, "samples": samples}},
            "task": {"options": sizes},
            "federated": {"batch_size": 16, "learning_rate": 0.1},
        }
    )


def bare(task: Any, parts: list[Any], barrier: Any, results: Any, rate: float, repeats: int) -> None:
    torch.set_num_threads(1)
    parts = [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in parts]
    model = task.model(0)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for repeat in range(repeats + 1):  # the first is not counted
        barrier.wait()
        began = time.perf_counter()
        for batch in parts:
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        results.put((repeat, time.perf_counter() - began))
        barrier.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--samples", type=int, default=24, help="mean samples a client")
    parser.add_argument("--words", type=int, default=8192)
    parser.add_argument("--small", action="store_true", help="a BERT of 2 layers and width 96 instead of TinyBERT")
    parser.add_argument("--repeats", type=int, default=6)
    given = parser.parse_args()
    header("torch", "transformers")
    settings = config(given.clients, given.samples, given.words, given.small)
    things = prepare(settings)
    clients = [c for c in things.stream.clients if len(things.stream.samples(c, 0))]
    total = int(things.stream.counts("train").sum())
    print(f"{len(clients)} clients, {total} samples, batches of 16, model of {things.start.size} numbers")
    context = multiprocessing.get_context("spawn")
    per_client = [
        [
            {k: v.numpy() for k, v in b.items()}
            for b in batches(things.task, things.stream.samples(c, 0), 16, seed=0, epoch=0)
        ]
        for c in clients
    ]
    order = sorted(range(len(clients)), key=lambda k: -sum(len(b["input_ids"]) for b in per_client[k]))
    rates: dict[tuple[str, int], float] = {}
    for workers in (2, 1):
        parts = [[b for k in order[w::workers] for b in per_client[k]] for w in range(workers)]
        barrier, results = context.Barrier(workers + 1), context.Queue()
        arguments = (barrier, results, 0.1, given.repeats)
        processes = [context.Process(target=bare, args=(things.task, part, *arguments)) for part in parts]
        for process in processes:
            process.start()
        times: dict[str, list[float]] = {"bare": [], "engine": []}
        with (
            tempfile.TemporaryDirectory() as folder,
            ProcessesEngine(things.stream, things.task, things.start, workers) as engine,
        ):
            engine.begin(settings, Path(folder))
            for repeat in range(given.repeats + 1):
                barrier.wait()
                barrier.wait()
                slowest = max(results.get()[1] for _ in processes)
                began = time.perf_counter()
                train_round(engine, repeat, clients, things.start)
                spent = time.perf_counter() - began
                if repeat:
                    times["bare"].append(slowest)
                    times["engine"].append(spent)
        for process in processes:
            process.join()
        for side, seconds in times.items():
            rates[side, workers] = total / statistics.median(seconds)
            print(f"{workers} processes, {side}: rounds of {', '.join(f'{s:.2f}' for s in seconds)} s")
        ours, theirs = rates["engine", workers], rates["bare", workers]
        print(
            f"{workers} processes: engine {ours:.1f}, bare steps {theirs:.1f} samples/s: {ours / theirs:.3f} (>= 0.9)"
        )
    for side in ("engine", "bare"):
        ratio = rates[side, 2] / rates[side, 1]
        print(f"2 workers / 1 worker, {side}: {ratio:.2f}x" + (" (asked: >= 1.8x)" if side == "engine" else ""))


if __name__ == "__main__":
    main()
