"""A run killed -9 at random moments and resumed ends with the same bits: python -m benchmarks.run_kill --kills 20.

One run is carried out whole. Then the same run is started again and again with `coreplay run`, the whole process group
killed after a random time, and resumed, until the kills are used up; then it may end. Its records and buffers must
equal those of the whole run, byte by byte.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coreplay.replay import Store
from coreplay.runtime import Config

RECORDS = ("metrics.jsonl", "rounds.jsonl", "coordination.jsonl")
SETTINGS = {
    "stream": {"options": {"num_clients": 12, "num_periods": 4, "samples": 16}},
    "task": {
        "options": {
            "num_layers": 2,
            "hidden_size": 64,
            "num_heads": 4,
            "intermediate_size": 128,
            "vocabulary_size": 500,
            "max_length": 24,
        }
    },
    "federated": {"rounds": 4},
    "replay": {"strategy": "corrective", "budget": 5},
    "gradients": {"sketch_size": 512},
    "engine": {"checkpoint_seconds": 0},
}


def command(config: Path, folder: Path) -> list[str]:
    program = Path(sys.executable).with_name("coreplay")
    given = ["--resume"] if (folder / "config.toml").exists() else [str(config)]
    return [str(program), "run", *given, "-o", str(folder)]


def moment(folder: Path) -> str:
    """Return where the run was, by its last checkpoint."""
    from coreplay.runtime import RunFolder

    try:
        found = RunFolder(folder).checkpoint()
    except ValueError as error:
        return f"damaged: {error}"
    if found is None:
        return "before the first checkpoint"
    progress = found.progress
    return f"period {progress.period}, round {progress.round}{', measured' if progress.measured else ''}"


def contents(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {name: (folder / name).read_text() for name in RECORDS}
    with Store.open(folder / "buffers.sqlite") as store:
        found["buffers"] = store.load_many(store.clients())
    found["metrics"] = json.loads((folder / "summary.json").read_text())["metrics"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as place:
        config, whole, killed = Path(place) / "run.toml", Path(place) / "whole", Path(place) / "killed"
        config.write_text(Config.make(SETTINGS).toml())
        began = time.monotonic()
        subprocess.run(command(config, whole), check=True, capture_output=True)
        spent = time.monotonic() - began
        working = sum(json.loads((whole / "summary.json").read_text())["seconds"].values())
        print(f"whole run: {spent:.1f} s, of which {working:.1f} s of work", flush=True)
        done = 0
        while done < given.kills:
            process = subprocess.Popen(
                command(config, killed), start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
            assert process.stderr is not None
            if done % 4:  # three of four after the first news of progress, the others at any time from the start
                process.stderr.readline()
            wait = rng.uniform(0, 0.25 * working if done % 4 else spent)
            time.sleep(wait)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                done += 1
                print(f"kill {done} after {wait:.2f} s: {moment(killed)}", flush=True)
            elif (killed / "summary.json").exists():
                equal = contents(killed) == contents(whole)
                print(f"ended before the kill; equal: {equal}; started anew", flush=True)
                if not equal:
                    sys.exit(1)
                subprocess.run(["rm", "-rf", str(killed)], check=True)
            else:
                sys.exit(f"the run failed with exit code {process.returncode}")
        if not (killed / "summary.json").exists():
            subprocess.run(command(config, killed), check=True, capture_output=True)
        equal = contents(killed) == contents(whole)
        print(f"{done} kills; records, buffers and final metrics equal to those of the whole run: {equal}")
        sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
