"""A whole run on a real stream: the commits of 1000 authors in ten half-years, TinyBERT, corrective, budget 20.

Prints time by phase, bytes, perplexities, and the peak of memory (proportional set sizes of all processes, sampled).
Stopped on the way, the same command goes on.

    python -m benchmarks.run_apache [--data ../shared/data/apache_commits/data.jsonl.gz] [--folder runs/apache]
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import header
from benchmarks.run_memory import proportional, tree

CONFIG = {
    "stream": {"source": "files"},
    "task": {"name": "masked_lm", "options": {"vocabulary_size": 8192, "max_length": 24}},
    "federated": {
        "rounds": 5,
        "clients_per_round": 100,
        "optimizer": "adamw",
        "learning_rate": 0.0005,
        "batch_size": 16,
    },
    "replay": {"strategy": "corrective", "budget": 20, "coordination_rounds": 4},
    "gradients": {"sketch_size": 4096, "parameters": ["*.layer.3.*"]},
}
EVERY = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/apache_commits/data.jsonl.gz"))
    parser.add_argument("--folder", type=Path, default=Path("runs/apache"))
    given = parser.parse_args()
    header("torch", "transformers")
    command = [sys.executable, "-m", "coreplay", "run", "--json"]
    if (given.folder / "config.toml").exists():
        command += ["--resume", str(given.folder)]
    else:
        from coreplay.runtime import Config

        columns = {
            "client": "client_id",
            "text": "text",
            "timestamp": "timestamp",
            "period": "period",
            "split": "split",
        }
        options = {"path": str(given.data.absolute()), "columns": columns}
        path = given.folder.with_suffix(".toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Config.make(CONFIG, {"stream.options": options}).toml())
        command += [str(path), "-o", str(given.folder)]
    began, peak = time.monotonic(), 0.0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        peak = max(peak, sum(proportional(one) for one in tree(process.pid)))
        time.sleep(EVERY)
    assert process.stdout is not None
    if process.returncode:
        raise SystemExit(process.returncode)
    found = json.loads(process.stdout.read())
    print(f"{(time.monotonic() - began) / 60:.1f} minutes, peak of memory {peak:.0f} MB")
    print(", ".join(f"{phase} {spent / 60:.1f} min" for phase, spent in found["seconds"].items()))
    print(f"{found['bytes_up'] / 1e9:.2f} GB up, {found['bytes_down'] / 1e9:.2f} GB down")
    print("perplexity by period: " + ", ".join(f"{value:.1f}" for value in found["metrics"]["perplexity"]))


if __name__ == "__main__":
    main()
