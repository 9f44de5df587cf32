"""Training at one client: passes over its samples, from a given model, with every random choice seeded."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coreplay.data import Samples
from coreplay.errors import InputError
from coreplay.learning.context import LearningContext, State, Step
from coreplay.learning.hooks import HookError, Methods, checked_state, checked_sums, joined, part
from coreplay.learning.parameter_vector import FlatModel
from coreplay.seeding import generator
from coreplay.tasks import Task, WeightedSum, batch_rows, evaluating, view


class Settings(Protocol):
    """What local training takes from the `[federated]` table of a configuration."""

    epochs: int
    batch_size: int
    optimizer: Any
    learning_rate: float
    momentum: float
    weight_decay: float
    max_grad_norm: float

    def rounds_before(self, period: int) -> int:
        """Return how many rounds all periods before this one have."""


@dataclass(frozen=True)
class Turn:
    """Which client trains, and when."""

    seed: int
    client: str
    period: int
    round: int

    def __str__(self) -> str:
        return f"at client {self.client!r} in period {self.period}, round {self.round}"


@dataclass(frozen=True)
class Trained:
    """The result of a client's training: its samples, its losses, and what the hooks return."""

    samples: int
    loss: WeightedSum
    sums: dict[str, Tensor]
    state: dict[str, Any]


def contexts(
    methods: Methods,
    flat: FlatModel,
    task: Task,
    pool: Samples,
    settings: Settings,
    turn: Turn,
    *,
    state: State | None = None,
    received: Mapping[str, Tensor] | None = None,
    period_model: Tensor | None = None,
    seen: int = 0,
) -> dict[str, LearningContext]:
    """Return what each hook sees, by the name of the hook."""
    start = flat.values[: flat.trainable].clone()
    return {
        name: LearningContext(
            task=task,
            flat=flat,
            pool=pool,
            start=start,
            period_model=period_model,
            received=part(received or {}, name),
            state=part(state or {}, name),
            client=turn.client,
            period=turn.period,
            round=turn.round,
            settings=settings,
            rng=generator(turn.seed, turn.client, turn.period, f"hook {name}", turn.round),
            seen=seen,
        )
        for name in methods.hooks
    }


def check_task(methods: Methods, flat: FlatModel, task: Task, samples: Samples) -> None:
    """Let the hooks refuse a task that they can't work with, given a few samples of the run."""
    checking = methods.overriding("check_task")
    if checking and len(samples):
        batch = task.collate(samples)
        with evaluating(flat.model), torch.no_grad():
            outputs = task.outputs(flat.model, batch)
        for hook in checking.values():
            hook.check_task(task, batch, outputs)


def train(
    flat: FlatModel,
    task: Task,
    pool: Samples,
    methods: Methods,
    settings: Settings,
    turn: Turn,
    **given: Any,
) -> Trained:
    """Train the model in place, from the values that it has.

    Everything random (batches, masks, dropout) comes from (seed, client, period, round). In a batch of one sample,
    batch norm layers normalise by their running statistics and do not change them: one sample has no variance. What
    else is `given` are the keyword arguments of `contexts`.
    """
    methods = methods.during(turn.period)
    rng = generator(turn.seed, turn.client, turn.period, "training", turn.round)
    order, dropout = (int(rng.integers(2**62)) for _ in range(2))
    batching, losing, changing = (list(methods.overriding(name)) for name in ("batches", "loss", "gradient"))
    seen: dict[str, LearningContext] = {}
    if batching or losing or changing or methods.keep_state:
        seen = contexts(methods, flat, task, pool, settings, turn, **given)
    optimizer = _optimizer(flat, settings)
    model = flat.model
    total = torch.zeros((), dtype=torch.float64)
    weight = torch.zeros((), dtype=torch.float64)
    steps = 0
    first = (settings.rounds_before(turn.period) + turn.round) * settings.epochs
    if not model.training:
        model.train()
    norms = [layer for layer in flat.batch_norms if layer.training]  # a model may keep some frozen
    with torch.random.fork_rng(devices=[]), _in_training(norms):
        torch.default_generator.manual_seed(dropout)  # torch.manual_seed also queues a call for each kind of device
        for epoch in range(first, first + settings.epochs):
            masks = view(order, epoch)
            for samples in _epoch(methods, batching, seen, task, pool, settings, order, epoch):
                batch = task.collate(samples, masks)
                weights = task.weights(batch)
                for layer in norms:
                    layer.train(len(weights) > 1)
                outputs = task.outputs(model, batch)
                losses = task.losses(outputs, batch)
                if (samples.weight != 1).any():
                    scale = torch.from_numpy(samples.weight)
                    losses, weights = losses * scale, weights * scale
                step = Step(samples, batch, outputs, losses, weights)
                loss = step.mean_loss
                for name in losing:
                    extra = methods.hooks[name].loss(seen[name], step)
                    if extra is not None:
                        loss = loss + _scalar(extra, name, turn)
                flat.clear_gradients()
                loss.backward()  # type: ignore[no-untyped-call]
                if settings.max_grad_norm:
                    torch.nn.utils.clip_grad_norm_(flat.parameters, settings.max_grad_norm)
                if changing:
                    _change(flat, methods, changing, seen, step, turn)
                optimizer.step()
                steps += 1
                total += losses.detach().sum()
                weight += weights.sum()
    flat.clear_gradients()  # as much memory as the model, which is no longer needed
    if not math.isfinite(float(total)):
        raise InputError(
            f"training {turn} gave NaN or infinity: lower federated.learning_rate (now {settings.learning_rate:g})"
        )
    sums, state = _finished(methods, seen, turn, steps, flat)
    return Trained(len(pool), WeightedSum(float(total), float(weight)), sums, state)


@contextmanager
def _in_training(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Put layers back into training mode afterwards."""
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


def _epoch(
    methods: Methods,
    batching: list[str],
    seen: Mapping[str, LearningContext],
    task: Task,
    pool: Samples,
    settings: Settings,
    order: int,
    epoch: int,
) -> Iterator[Samples]:
    """Return the batches of an epoch: those of the first hook that has any, else the pool in random order."""
    for name in batching:
        found = methods.hooks[name].batches(seen[name], epoch)
        if found is not None:
            return found
    return (pool[rows] for rows in batch_rows(task, pool, settings.batch_size, seed=order, epoch=epoch))


def _scalar(value: Any, hook: str, turn: Turn) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise HookError(f"{hook!r} {turn}: loss must return a tensor with one number: got {got}")
    if not torch.isfinite(value):
        raise HookError(f"{hook!r} {turn}: loss returned NaN or infinity")
    return value.reshape(())


def _change(
    flat: FlatModel, methods: Methods, names: list[str], seen: Mapping[str, LearningContext], step: Step, turn: Turn
) -> None:
    """Let hooks change the gradient."""
    which = [parameter.grad is not None for parameter in flat.parameters]
    gradient = flat.gradient()
    for name in names:
        found = methods.hooks[name].gradient(seen[name], gradient, step)
        if not isinstance(found, Tensor) or found.shape != gradient.shape:
            got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise HookError(f"{name!r} {turn}: gradient must return shape {tuple(gradient.shape)}: got {got}")
        if not torch.isfinite(found.sum()):
            raise HookError(f"{name!r} {turn}: gradient returned NaN or infinity")
        gradient = found
    flat.set_gradient(gradient, which)


def _finished(
    methods: Methods, seen: Mapping[str, LearningContext], turn: Turn, steps: int, flat: FlatModel
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the sums and the new states of all hooks after a round."""
    sums, states = {}, {}
    finishing = methods.overriding("finish_round")
    for name, ctx in seen.items():
        states[name] = dict(ctx.state)
        if name in finishing:
            change = flat.values[: flat.trainable] - ctx.start
            found, state = _pair(finishing[name].finish_round(replace(ctx, steps=steps), change), name, turn)
            sums[name] = checked_sums(found, finishing[name].round_sums, flat.trainable, name, str(turn))
            states[name] = checked_state(state, name, str(turn))
    return joined(sums), joined(states)


def _pair(found: Any, hook: str, turn: Turn) -> tuple[Any, Any]:
    if not isinstance(found, tuple) or len(found) != 2:
        raise HookError(f"{hook!r} {turn}: must return a pair, (sums for the server, new state): got {found!r:.80}")
    return found


def finish_period(
    methods: Methods, seen: Mapping[str, LearningContext], turn: Turn
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the sums and the new states of all hooks after a period."""
    sums, states = {}, {}
    finishing = methods.overriding("finish_period")
    for name, ctx in seen.items():
        states[name] = dict(ctx.state)
        if name in finishing:
            found, state = _pair(finishing[name].finish_period(ctx), name, turn)
            sums[name] = checked_sums(found, finishing[name].period_sums, ctx.flat.trainable, name, str(turn))
            states[name] = checked_state(state, name, str(turn))
    return joined(sums), joined(states)


def _optimizer(flat: FlatModel, settings: Settings) -> torch.optim.Optimizer:
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(flat.parameters, lr=rate, weight_decay=decay, fused=True)
    return torch.optim.SGD(flat.parameters, lr=rate, momentum=settings.momentum, weight_decay=decay, fused=True)
