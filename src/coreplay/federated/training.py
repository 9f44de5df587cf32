"""Training at one client: passes over its samples, from a given model, with nothing left to chance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coreplay.data import Samples
from coreplay.errors import InputError
from coreplay.federated.algorithm import Algorithm
from coreplay.federated.config import FederatedConfig
from coreplay.federated.flat import FlatModel
from coreplay.seeding import generator
from coreplay.tasks import Tally, Task, batches


@dataclass(frozen=True)
class Trained:
    """What a client tells of its training: how many samples it has, and its losses on the way."""

    samples: int
    loss: Tally


def train(
    flat: FlatModel,
    task: Task,
    samples: Samples,
    algorithm: Algorithm,
    config: FederatedConfig,
    *,
    seed: int,
    client: str,
    period: int,
    round: int,
) -> Trained:
    """Train the model in place, from the values that it has.

    Everything random (batches, masks, dropout) comes from (seed, client, period, round).
    """
    rng = generator(seed, client, period, "training", round)
    order, dropout = (int(rng.integers(2**62)) for _ in range(2))
    start = flat.values[: flat.trained].clone() if type(algorithm).local is not Algorithm.local else flat.values
    optimizer = _optimizer(flat, config)
    model = flat.model
    total = torch.zeros((), dtype=torch.float64)
    weight = torch.zeros((), dtype=torch.float64)
    first = (period * config.rounds + round) * config.epochs
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(dropout)
        for epoch in range(first, first + config.epochs):
            for batch in batches(task, samples, config.batch_size, seed=order, epoch=epoch):
                losses, weights = task.per_sample_loss(model, batch), task.weights(batch).sum()
                flat.gradients.zero_()
                (losses.sum() / weights).backward()  # type: ignore[no-untyped-call]
                _step(flat, algorithm, config, start, optimizer)
                total += losses.detach().sum()
                weight += weights
    if not bool(torch.isfinite(flat.values.sum())):
        raise InputError(
            f"training of client {client!r} in period {period}, round {round} gave NaN or infinity: "
            f"lower federated.learning_rate (now {config.learning_rate:g})"
        )
    return Trained(len(samples), Tally(float(total), float(weight)))


def _step(
    flat: FlatModel, algorithm: Algorithm, config: FederatedConfig, start: Tensor, optimizer: torch.optim.Optimizer
) -> None:
    with torch.no_grad():
        if config.clip is not None:
            length = float(torch.linalg.vector_norm(flat.gradients))
            if length > config.clip:
                flat.gradients.mul_(config.clip / length)
        moved = algorithm.local(flat.gradients, flat.parameter, start)
        if moved is not flat.gradients:
            flat.gradients.copy_(moved)
    optimizer.step()


def _optimizer(flat: FlatModel, config: FederatedConfig) -> torch.optim.Optimizer:
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adamw":
        return torch.optim.AdamW([flat.parameter], lr=rate, weight_decay=decay, fused=True)
    return torch.optim.SGD([flat.parameter], lr=rate, momentum=config.momentum, weight_decay=decay, fused=True)
