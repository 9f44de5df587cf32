"""Training at one client: passes over its samples, from a given model, with nothing left to chance."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from coreplay.data import Samples
from coreplay.errors import InputError
from coreplay.federated.algorithm import Algorithm
from coreplay.federated.config import FederatedConfig
from coreplay.federated.flat import FlatModel
from coreplay.seeding import generator
from coreplay.tasks import Task, WeightedSum, batches


@dataclass(frozen=True)
class Trained:
    """What a client tells of its training: how many samples it has, and its losses on the way."""

    samples: int
    loss: WeightedSum


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

    Everything random (batches, masks, dropout) comes from (seed, client, period, round). In a batch of one sample,
    batch norm layers normalise by their running statistics and do not change them: one sample has no variance.
    """
    rng = generator(seed, client, period, "training", round)
    order, dropout = (int(rng.integers(2**62)) for _ in range(2))
    start = [p.detach().clone() for p in flat.parameters] if type(algorithm).local is not Algorithm.local else None
    optimizer = _optimizer(flat, config)
    model = flat.model
    total = torch.zeros((), dtype=torch.float64)
    weight = torch.zeros((), dtype=torch.float64)
    first = (config.rounds_before(period) + round) * config.epochs
    model.train()
    norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(dropout)
        for epoch in range(first, first + config.epochs):
            for batch in batches(task, samples, config.batch_size, seed=order, epoch=epoch):
                weights = task.weights(batch)
                for layer in norms:
                    layer.train(len(weights) > 1)
                losses, weights = task.per_sample_loss(model, batch), weights.sum()
                optimizer.zero_grad()
                (losses.sum() / weights).backward()  # type: ignore[no-untyped-call]
                _step(flat, algorithm, config, start, optimizer)
                total += losses.detach().sum()
                weight += weights
    for layer in norms:
        layer.train()
    optimizer.zero_grad()  # as much memory as the model, of no use any more
    if not math.isfinite(float(total)):
        raise InputError(
            f"training of client {client!r} in period {period}, round {round} gave NaN or infinity: "
            f"lower federated.learning_rate (now {config.learning_rate:g})"
        )
    return Trained(len(samples), WeightedSum(float(total), float(weight)))


def _step(
    flat: FlatModel,
    algorithm: Algorithm,
    config: FederatedConfig,
    start: list[Tensor] | None,
    optimizer: torch.optim.Optimizer,
) -> None:
    if config.max_grad_norm:
        torch.nn.utils.clip_grad_norm_(flat.parameters, config.max_grad_norm)
    if start is not None:
        with torch.no_grad():
            for parameter, origin in zip(flat.parameters, start, strict=True):
                if parameter.grad is not None:
                    parameter.grad = algorithm.local(parameter.grad, parameter, origin)
    optimizer.step()


def _optimizer(flat: FlatModel, config: FederatedConfig) -> torch.optim.Optimizer:
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adamw":
        return torch.optim.AdamW(flat.parameters, lr=rate, weight_decay=decay, fused=True)
    return torch.optim.SGD(flat.parameters, lr=rate, momentum=config.momentum, weight_decay=decay, fused=True)
