"""The same training on our engine, in pfl-research and in Flower's Ray simulation: each in its own loop, two processes.

Peers train once with transformers' own loss on padded batches ("plain") and once with our task's loss ("ours"). Plain
SGD, one epoch a round, every client in every round; one thread a process. Rates are samples a second without start-up
and without the first round of each side (median of the rounds). Test losses after the first round must agree.

pfl-research and Flower are no dependencies of coreplay. Into an environment with coreplay at the versions of
constraints.txt, from the repository's root:

    grep -vE '^(absl-py|attrs)==' constraints.txt > peers.txt     # pfl wants older ones of these two
    pip install -c peers.txt 'flwr[simulation]==1.41.0' 'pfl[pytorch]==0.6.0'

Sides run in turns, each in processes of its own. Their figures are added to a file, from which the table is made, so
that one side can be repeated alone.

    python -m benchmarks.run_peers [--words 8192] [--only ours|pfl|flower] [--record FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import header

PROCESSES, TOLERANCE = 2, 1e-4
SIDES = {"ours": ("ours",), "pfl": ("plain", "ours"), "flower": ("plain", "ours")}
ASKED = {"pfl": 1.5, "flower": 3.0}
MARK = "measured: "


def measure(side: str, loss: str, words: int, rounds: int) -> None:
    """Run one side in this process and print its figures; of several processes, the first one prints."""
    import torch

    torch.set_num_threads(1)
    if side == "ours":
        from benchmarks.peers import ours

        clock = ours.measure(words, rounds, PROCESSES)
    elif side == "pfl":
        from benchmarks.peers import pfl_research

        clock = pfl_research.measure(words, rounds, loss)
    else:
        from benchmarks.peers import flower

        clock = flower.measure(words, rounds, loss, PROCESSES)
    if os.environ.get("RANK", "0") == "0":
        facts = {"samples": clock.problem.samples, "seconds": clock.seconds, "loss": clock.loss}
        print(MARK + json.dumps({"side": side, "loss_of": loss, "words": words} | facts), flush=True)


def apart(side: str, loss: str, words: int, rounds: int) -> dict[str, Any]:
    """Run one side in processes of its own and return its figures."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"] if side == "pfl" else []
    command = [sys.executable, *launcher, "-m", "benchmarks.run_peers", "--side", side, "--loss", loss]
    command += ["--words", str(words), "--rounds", str(rounds)]
    path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | threads, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if len(lines) != 1:
        raise SystemExit(f"{side} with loss {loss} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(lines[0].removeprefix(MARK))
    return found


def table(rows: list[dict[str, Any]]) -> None:
    """Print what all recorded turns say."""
    rates: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        steady = [row["samples"] / seconds for seconds in row["seconds"][1:]]
        rates.setdefault((row["side"], row["loss_of"]), []).extend(steady)
    mine = rates.get(("ours", "ours"))
    for (side, loss), found in rates.items():
        rate = statistics.median(found)
        text = f"{side:<7} loss {loss:<6} {rate:8.1f} samples/s"
        text += f" ({len(found)} rounds, {min(found):.1f} to {max(found):.1f})"
        if mine and side != "ours":
            text += f"  ours is {statistics.median(mine) / rate:.2f}x as fast (asked: >= {ASKED[side]}x)"
        print(text)
    losses = [row["loss"] for row in rows]
    spread = max(losses) - min(losses)
    verdict = "agree" if spread <= TOLERANCE else "DO NOT AGREE"
    print(f"test loss after the first round: {min(losses):.6f} to {max(losses):.6f}: {verdict} (to {TOLERANCE:g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=SIDES)
    parser.add_argument("--record", type=Path, help="JSONL file that figures are added to")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--loss", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        measure(given.side, given.loss, given.words, given.rounds)
        return
    from benchmarks.peers.problem import problem

    header("torch", "transformers", *(() if given.only == "ours" else ("pfl", "flwr", "ray")))
    made = problem(given.words)
    clients = int((made.stream.counts("train") > 0).sum())
    start = made.test_loss(made.task.model(0))
    print(f"{clients} clients, {made.samples} samples a round, {given.words} words; test loss at the start {start:.6f}")
    kept = given.record.read_text().splitlines() if given.record and given.record.exists() else []
    rows = [row for row in map(json.loads, kept) if row["words"] == given.words]
    for side in [given.only] if given.only else SIDES:
        for loss in SIDES[side]:
            rows.append(apart(side, loss, given.words, given.rounds))
            if given.record:
                with given.record.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    table(rows)


if __name__ == "__main__":
    main()
