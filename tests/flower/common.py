"""What the tests of Flower share: a small configuration, and a look into the clients' buffers."""

import json
import subprocess
import sys
import time
from pathlib import Path

from coreplay.replay import Store
from coreplay.runtime import Config

SMALL = {
    "stream": {"options": {"num_clients": 3, "num_periods": 2, "samples": 10}},
    "task": {
        "options": {
            "num_layers": 1,
            "hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 32,
            "vocabulary_size": 200,
            "max_length": 16,
        }
    },
    "federated": {"rounds": 2, "batch_size": 4},
    "replay": {"budget": 3, "coordination_rounds": 2},
    "gradients": {"sketch_size": 64},
    "engine": {"aggregation_groups": 2, "checkpoint_seconds": 0, "timeout": 120, "min_clients": 3},
}


def config(**changes):
    return Config.make(SMALL, {name.replace("__", "."): value for name, value in changes.items()})


def digits(**changes):
    """Images instead of texts: a deployed client starts a process for every message, and transformers take 4 s."""
    data = {"stream": {"source": "digits", "options": {"num_clients": 3, "num_periods": 2}}}
    data |= {"task": {"name": "image_classification", "options": {"channels": 2}}}
    data |= {name: SMALL[name] for name in ("federated", "replay", "gradients", "engine")}
    return Config.make(data, {name.replace("__", "."): value for name, value in changes.items()})


def kept(stores) -> dict[str, list[str]]:
    """Return which samples each client keeps, out of any number of stores."""
    found = {}
    for path in stores:
        with Store.open(path) as store:
            found |= {client: [item.key for item in store.load(client).items] for client in store.clients()}
    return found


def client_stores(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*/buffers.sqlite"))


def lines(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def metrics(folder: Path) -> list[float]:
    rows = lines(folder, "metrics.jsonl")
    return [row["perplexity" if "perplexity" in row else "accuracy"] for row in rows]


def python(script: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Run a script in a process of its own: Ray and signals leave traces in a process."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


def command(*arguments, **options) -> subprocess.Popen:
    """Start the command line in a process group of its own; it heeds ctrl-C also where the tests run behind "&"."""
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script = heeds + "from coreplay.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], start_new_session=True, **options)


def left_of(group) -> str:
    """Return what is left of a process group; helpers of the interpreter may end a moment after it."""
    until = time.monotonic() + 10
    while True:
        found = subprocess.run(["pgrep", "-g", str(group)], capture_output=True, text=True, check=False).stdout
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.2)
