"""Peak memory of a run on worker processes with few and with many clients: asked to be within 10 % of each other.

Two periods: training, measuring and a corrective selection of the first, training and measuring of the second. TinyBERT
with the same 8192 words, 50 clients a round and as many rounds on both sides. Memory is the sum of the proportional set
sizes (/proc/PID/smaps_rollup) of the run's process and all that it started, sampled; the peak is also given by phase. A
run of ten times the length is sampled ten times as often, and more likely at a moment at which all peaks meet; so each
process's own peak is given too, as the kernel has recorded it (VmHWM, shared pages included).

    python -m benchmarks.run_memory [--clients 100 1000]
"""

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import header

WORDS, PER_ROUND, ROUNDS, EVERY = 8192, 50, 2, 0.05
PHASES = {"begin": "training", "evaluated": "selection", "selected": "training", "end": "end"}


def vocabulary(clients: int, folder: Path) -> None:
    """Write the vocabulary of the first period, filled up to WORDS with pieces that nobody uses."""
    from coreplay.data import load
    from coreplay.tasks.tokenization import Vocabulary, tokenizer, train

    pieces = train(load("synthetic", num_clients=clients, num_periods=2).of_period(0).texts, WORDS)
    pieces += [f"[unused{k}]" for k in range(WORDS - len(pieces))]
    Vocabulary(tokenizer(pieces)).save(folder)


def carry_out(clients: int, folder: Path) -> None:
    """Do the run in this process, and print each phase when it begins."""
    from coreplay.runtime import Config, Event, run

    def observer(event: Event) -> None:
        if event.kind in PHASES:
            period = event.period + (event.kind == "selected")  # what follows belongs to the next period
            print(f"{PHASES[event.kind]} {period}", flush=True)

    config = Config.make(
        {
            "stream": {"options": {"num_clients": clients, "num_periods": 2}},
            "task": {"options": {"vocabulary": str(folder)}},
            "federated": {"rounds": ROUNDS, "clients_per_round": PER_ROUND},
            "engine": {"name": "processes"},
        }
    )
    run(config, folder / f"run-{clients}", observer=observer)


def tree(root: int) -> list[int]:
    """Return a process and all that came from it."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except OSError:  # it has just ended
            continue
    found = [root]
    for one in found:
        found += parents.get(one, [])
    return found


def proportional(process: int) -> float:
    """Return the proportional set size in megabytes; 0 of a process that is gone."""
    return _megabytes(process, "smaps_rollup", "Pss:")


def recorded(process: int) -> float:
    """Return the highest resident set size that the kernel has seen, in megabytes; 0 of a process that is gone."""
    return _megabytes(process, "status", "VmHWM:")


def _megabytes(process: int, file: str, name: str) -> float:
    try:
        lines = Path(f"/proc/{process}/{file}").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def watched(clients: int, folder: Path) -> tuple[dict[str, float], list[float], list[float]]:
    """Do a run in processes of its own; return the peak by phase, each process's share of it, and each one's own."""
    command = [sys.executable, "-m", "benchmarks.run_memory", "--run", str(clients), "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    phase = "start"

    def listen() -> None:
        nonlocal phase
        assert process.stdout is not None
        for line in process.stdout:
            phase = line.strip()

    threading.Thread(target=listen, daemon=True).start()
    peaks: dict[str, float] = {}
    highest: list[float] = []
    own: dict[int, float] = {}
    while process.poll() is None:
        processes = tree(process.pid)
        now = [proportional(one) for one in processes]
        own |= {one: peak for one in processes if (peak := recorded(one))}
        peaks[phase] = max(peaks.get(phase, 0.0), sum(now))
        highest = max(highest, now, key=sum)
        time.sleep(EVERY)
    if process.returncode:
        raise SystemExit(f"the run with {clients} clients failed")
    return peaks, highest, list(own.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs=2, default=[100, 1000])
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        carry_out(given.run, given.folder)
        return
    header("torch", "transformers")
    peaks: list[dict[str, float]] = []
    own: list[float] = []
    with TemporaryDirectory() as name:
        vocabulary(max(given.clients), Path(name))
        for clients in given.clients:
            found, highest, records = watched(clients, Path(name))
            peaks.append(found)
            own.append(sum(records))
            parts = ", ".join(f"{part:.0f}" for part in highest)
            print(f"{clients} clients: peak {max(found.values()):.0f} MB (by process: {parts})", flush=True)
            print("  each process's own peak: " + ", ".join(f"{record:.0f}" for record in records), flush=True)
    for phase in (phase for phase in peaks[0] if phase in peaks[1]):  # a short one may not have been looked at
        few, many = (found[phase] for found in peaks)
        print(f"  {phase:<12} {few:7.0f} MB {many:7.0f} MB {many / few:6.3f}")
    print(f"own peaks    {own[0]:9.0f} MB {own[1]:7.0f} MB {own[1] / own[0]:6.3f}")
    few, many = (max(found.values()) for found in peaks)
    print(f"peak         {few:9.0f} MB {many:7.0f} MB {many / few:6.3f}  (asked: within 10 %)")


if __name__ == "__main__":
    main()
