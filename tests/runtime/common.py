"""What the tests of runs share: a tiny configuration, and one round without a trainer."""

from pathlib import Path

from coreplay.runtime import Config
from coreplay.runtime.aggregation import Weights, sum_over_clients
from coreplay.runtime.requests import CHANGE, MODEL, Train

RECORDS = ("metrics.jsonl", "rounds.jsonl", "coordination.jsonl")
TINY = {
    "stream": {"options": {"num_clients": 6, "num_periods": 3, "samples": 8}},
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
    "engine": {"name": "processes", "aggregation_groups": 4, "checkpoint_seconds": 0},
}


def config(**changes):
    return Config.make(TINY, {name.replace("__", "."): value for name, value in changes.items()})


def records(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in RECORDS if (folder / name).exists()}


def train_round(engine, clients, values, observe=lambda report: None):
    """Let clients train in the first round, and return what the server sums up."""
    numbers = {client: k for k, client in enumerate(engine.registry.clients)}
    counts = {client: int(engine.registry.counts("train")[numbers[client], 0]) for client in clients}
    request = Train(arrays={MODEL: values})
    names, weights = {CHANGE: len(values)}, Weights(10.0)
    return sum_over_clients(engine, request, clients, counts.__getitem__, names, 4, weights, observe, "training")
