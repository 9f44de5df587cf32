"""Our side: rounds of the engine `processes` and FedAvg, as a run does them."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import train_round
from benchmarks.peers.problem import BATCH, RATE, SEED, Clock, problem
from coreplay.learning import FlatModel
from coreplay.runtime import Config, ProcessesEngine


def measure(words: int, rounds: int, processes: int) -> Clock:
    """Train."""
    given = problem(words)
    clock, flat = Clock(given), FlatModel(given.task.model(SEED))
    values = flat.numpy().copy()
    federated = {"batch_size": BATCH, "learning_rate": RATE, "max_grad_norm": 0, "rounds": rounds}
    config = Config.make({"seed": SEED, "federated": federated})
    clients = [client for client, _, _ in given.stream.cells()]

    def model() -> Any:
        flat.load(values)
        return flat.model

    with TemporaryDirectory() as folder, ProcessesEngine(given.stream, given.task, values, processes) as engine:
        engine.begin(config, Path(folder))
        engine.rewind(-1)
        for number in range(rounds):
            clock.start()
            update = train_round(engine, number, clients, values)
            values = values + update.sums["change"] / values.dtype.type(update.weight)  # FedAvg
            clock.stop(model)
    return clock
