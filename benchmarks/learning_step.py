"""What a continual method costs: one client's training with it and without it, in turns, from one run.

A TinyBERT with 30 522 words, a pool of new and kept samples, plain SGD, one thread. Every method trains the same pool;
the ratio is its time over that of plain training. `--memory` measures the peak memory of a process with and without one
method instead.

    python -m benchmarks.learning_step [--words 30522] [--methods distillation der_pp] [--memory]
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.common import header
from coreplay.data import Samples, load
from coreplay.learning import FlatModel, Methods, Turn, continual_methods, train
from coreplay.learning.training import contexts
from coreplay.runtime import Config
from coreplay.tasks.masked_lm import MaskedLM
from coreplay.tasks.tokenization import Vocabulary, tokenizer
from coreplay.tasks.tokenization import train as train_words

NEW, KEPT, REPEATS = 64, 32, 5
SETTINGS = Config.make({"federated": {"batch_size": 32, "learning_rate": 0.01}}).federated
TURN = Turn(0, "client", 1, 0)


def prepared(words: int) -> tuple[MaskedLM, Samples]:
    """Return the task, and a pool whose first samples are new in period 1 and whose others were kept in period 0."""
    stream = load("synthetic", seed=1)
    pieces = train_words(stream.of_period(0).texts, words)
    pieces += [f"[unused{k}]" for k in range(words - len(pieces))]
    task = MaskedLM(None, vocabulary=Vocabulary(tokenizer(pieces)), dropout=0.0)
    new, old = stream.of_period(1)[:NEW].replaced(arrived=1), stream.of_period(0)[:KEPT].replaced(arrived=0)
    return task, Samples.joined([new, old])


def ready(name: str | None, task: MaskedLM, pool: Samples, flat: FlatModel) -> Any:
    """Return a function that trains the pool once with a method, which has its state from a period before."""
    methods = Methods("fedavg", {}, {name: {}} if name else {})
    start = flat.values.clone()
    vectors = {key: torch.from_numpy(value) for key, value in methods.init(start[: flat.trainable].numpy()).items()}
    given: dict[str, Any] = {"received": vectors, "period_model": start, "state": {}}
    seen = contexts(methods, flat, task, pool, SETTINGS, TURN, **given)
    for hook, ctx in seen.items():
        if hook in methods.overriding("finish_period"):
            state = methods.hooks[hook].finish_period(ctx)[1]
            given["state"] |= {f"{hook}.{key}": value for key, value in state.items()}
        if hook in methods.overriding("keep"):
            kept = methods.hooks[hook].keep(ctx, pool[np.flatnonzero(pool.arrived == 0)])
            pool = Samples.joined([pool[np.flatnonzero(pool.arrived == 1)], kept])

    def run() -> None:
        flat.load(start)
        train(flat, task, pool, methods, SETTINGS, TURN, **given)

    return run


def memory(name: str, words: int) -> None:
    """Print the peak memory of a process that trains with a method; "plain" for none."""
    task, pool = prepared(words)
    flat = FlatModel(task.model(0))
    run = ready(None if name == "plain" else name, task, pool, flat)
    for _ in range(3):
        run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flat.values.nbytes / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=30_522)
    parser.add_argument("--methods", nargs="*", default=list(continual_methods()))
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.measure:
        return memory(given.measure, given.words)
    header("torch", "transformers")
    if given.memory:
        peaks = {}
        for name in ["plain", *given.methods]:
            command = [sys.executable, "-m", "benchmarks.learning_step", "--measure", name, "--words", str(given.words)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            peaks[name], model = float(output[-2]), float(output[-1])
            over = (peaks[name] - model) / peaks["plain"] if name != "plain" else 1.0
            print(f"{name:<16} {peaks[name]:>8.0f} MB   less one model of {model:.0f} MB: {over:>6.2f} of plain")
        return None
    task, pool = prepared(given.words)
    print(
        f"{NEW} new and {KEPT} kept samples, batches of {SETTINGS.batch_size}, {given.words} words; seconds per round"
    )
    runs = {name: ready(name, task, pool, FlatModel(task.model(0))) for name in given.methods}
    plain = ready(None, task, pool, FlatModel(task.model(0)))
    for name, run in runs.items():
        ratios, times = [], []
        for repeat in range(REPEATS + 1):
            seconds = []
            for side in (run, plain):
                began = time.perf_counter()
                side()
                seconds.append(time.perf_counter() - began)
            if repeat:
                ratios.append(seconds[0] / seconds[1])
                times.append(seconds)
        ours, without = (statistics.median(row[k] for row in times) for k in (0, 1))
        print(f"{name:<16} {ours:>8.3f} s   plain {without:>8.3f} s   ratio {statistics.median(ratios):>5.2f}")
    return None


if __name__ == "__main__":
    main()
