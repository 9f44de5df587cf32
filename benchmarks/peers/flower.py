"""Flower's Ray simulation in its documented loop: a ClientApp that trains, FedAvg in a ServerApp, one core an actor.

Clients' tensors and the model are made once an actor; Flower's examples make them for every message, which is slower.
"""

import os
from functools import lru_cache
from typing import Any

import torch

from benchmarks.peers.problem import BATCH, RATE, SEED, Clock, problem
from coreplay.tasks import Batch

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def measure(words: int, rounds: int, loss: str, processes: int) -> Clock:
    """Train."""
    os.environ |= QUIET
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    given = problem(words)
    clients = [client for client, _, _ in given.stream.cells()]
    clock, model = Clock(given), given.task.model(SEED)
    server, client = ServerApp(), ClientApp()
    client.train()(answer)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=len(clients), min_available_nodes=len(clients))

        def watch(round: int, arrays: ArrayRecord) -> None:
            """Flower calls this before the first round, and after every one."""
            if round:
                model.load_state_dict(arrays.to_torch_state_dict())
                clock.stop(lambda: model)
            clock.start()

        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"words": words, "loss": loss}),
            evaluate_fn=watch,
        )

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": processes}}
    run_simulation(server, client, num_supernodes=len(clients), backend_config=resources)
    return clock


@lru_cache(1)
def actor(words: int, loss: str) -> tuple[Any, list[Batch]]:
    """Return the model and every client's tensors, made once a process."""
    torch.set_num_threads(1)
    given = problem(words)
    return given.task.model(SEED), [given.data(client, loss) for client, _, _ in given.stream.cells()]


def answer(message: Any, context: Any) -> Any:
    """Train at one client: what a user of Flower writes."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    words, loss = int(message.content["config"]["words"]), str(message.content["config"]["loss"])
    model, data = actor(words, loss)
    columns = data[int(context.node_config["partition-id"])]
    samples = len(columns["input_ids"])
    of_batch = problem(words).loss(loss)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for start in range(0, samples, BATCH):
        optimizer.zero_grad()
        of_batch(model, {name: column[start : start + BATCH] for name, column in columns.items()}).backward()
        optimizer.step()
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": samples})}
    return Message(content=RecordDict(records), reply_to=message)
