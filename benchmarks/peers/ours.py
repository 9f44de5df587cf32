"""Our side: rounds of the engine `processes` and FedAvg, as a run does them."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers.problem import BATCH, RATE, SEED, Clock, problem
from coreplay.learning import FlatModel, make_algorithm
from coreplay.runtime import Config, ProcessesEngine


def measure(words: int, rounds: int, processes: int) -> Clock:
    """Train."""
    given = problem(words)
    clock, flat = Clock(given), FlatModel(given.task.model(SEED))
    values, algorithm = flat.numpy().copy(), make_algorithm("fedavg")
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
            update = engine.train(0, number, clients, values, lambda _: None)
            mean = update.change / update.change.dtype.type(update.samples)
            values, _ = algorithm.update(values, mean, {})
            clock.stop(model)
    return clock
