"""What a round costs on Flower's Ray simulation beside worker processes: many clients, a large model, little training.

TinyBERT with 30 522 words (58 MB), every client with one batch, all in every round. Seconds a round without start-up
(the rounds after the first), and the peak of memory: proportional set sizes of all processes, Ray's too, sampled.

    python -m benchmarks.flower_overhead [--clients 100] [--rounds 4] [--engines processes flower-simulation]
"""

import argparse
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import header
from benchmarks.run_memory import proportional, tree

WORDS, EVERY = 30522, 0.2


def carry_out(engine: str, clients: int, rounds: int, folder: Path) -> None:
    """Do the run in this process; print when each round ends."""
    from coreplay.runtime import Config, Event, run

    def observer(event: Event) -> None:
        if event.kind == "round":
            print(f"round {time.monotonic()}", flush=True)

    data = {
        "periods": 1,
        "stream": {"options": {"num_clients": clients, "num_periods": 2, "samples": 6}},
        "task": {"options": {"vocabulary": str(folder / "words")}},
        "federated": {"rounds": rounds},
        "replay": {"strategy": "none"},
        "engine": {"name": engine, "checkpoint_seconds": 10_000},
    }
    run(Config.make(data), folder / engine, observer=observer)


def watched(engine: str, clients: int, rounds: int, folder: Path) -> tuple[list[float], list[float]]:
    """Return the seconds of each round after the first, and each process's share of the peak of memory, in MB."""
    command = [sys.executable, "-m", "benchmarks.flower_overhead", "--carry-out", engine, "--folder", str(folder)]
    command += ["--clients", str(clients), "--rounds", str(rounds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    peak = [0.0]
    while process.poll() is None:
        peak = max(peak, [proportional(one) for one in tree(process.pid)], key=sum)
        time.sleep(EVERY)
    assert process.stdout is not None
    ends = [float(line.split()[1]) for line in process.stdout if line.startswith("round ")]
    if process.returncode:
        raise SystemExit(f"the run on {engine} failed")
    return [later - earlier for earlier, later in pairwise(ends)], peak


def vocabulary(folder: Path, clients: int) -> None:
    """Write a vocabulary of 30 522 pieces: those of the stream, and some that nobody uses."""
    from coreplay.data import load
    from coreplay.tasks.tokenization import Vocabulary, tokenizer, train

    pieces = train(load("synthetic", num_clients=clients, num_periods=2, samples=6).of_period(0).texts, WORDS)
    pieces += [f"[unused{k}]" for k in range(WORDS - len(pieces))]
    Vocabulary(tokenizer(pieces)).save(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--engines", nargs="+", default=["processes", "flower-simulation"])
    parser.add_argument("--carry-out", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.carry_out:
        carry_out(given.carry_out, given.clients, given.rounds, given.folder)
        return
    header("torch", "transformers", "flwr", "ray")
    print(f"{given.clients} clients, 58 MB, all in every round; seconds a round (from, to), peak of memory")
    first = 0.0
    for engine in given.engines:
        with TemporaryDirectory() as name:
            vocabulary(Path(name) / "words", given.clients)
            seconds, peak = watched(engine, given.clients, given.rounds, Path(name))
        middle = statistics.median(seconds)
        first = first or middle
        told = f"{middle:6.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
        parts = ", ".join(f"{part:.0f}" for part in sorted(peak, reverse=True) if part > 50)
        print(f"{engine:<18} {told}  {sum(peak):6.0f} MB (server {peak[0]:.0f}; all {parts})  {middle / first:5.2f}x")


if __name__ == "__main__":
    main()
