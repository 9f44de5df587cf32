"""The learning interface: hooks of a federated algorithm and of continual methods.

A run has one algorithm (how the clients' models become one) and any number of continual methods (how a client learns so
that it does not forget). Both subclass `LearningHook`; every default is FedAvg on the pool. A hook is a frozen
dataclass whose fields are its options. It is registered with `algorithm` or `continual_method`, in a separate file in
`coreplay.learning.algorithms` or `coreplay.learning.continual`, or in a plugin.

In one step of local training the hooks apply in this order: `batches` chooses the samples, every `loss` is added to the
mean loss, the gradient is clipped, every `gradient` changes it in turn, and the optimizer steps.

After the last round of a period, `finish_model` may change the model at the server. Then the model is evaluated,
clients answer `finish_period`, and buffers are filled.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coreplay.data import Samples
from coreplay.errors import InputError
from coreplay.learning.context import LearningContext, State, Step
from coreplay.registry import Registry
from coreplay.tasks import Task

Vector = NDArray[np.floating]
Sums = Mapping[str, Tensor]
H = TypeVar("H", bound=type["LearningHook"])
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # the type of an option


class HookError(InputError):
    """A hook returned something that can't be used; names the hook, the client and the period."""


@dataclass(frozen=True)
class RoundInfo:
    """What the server knows of a round or a period: the weight of all answers, and of all clients that have data.

    `step` is the fraction of the algorithm's update that is applied, by `federated.schedule`; `parameters` are those
    after the round's update.
    """

    weight: int
    total_weight: int
    clients: int
    period: int
    round: int
    step: float = 1.0
    parameters: Vector = field(default_factory=lambda: np.empty(0))


class LearningHook:
    """What a learning method may change; subclass it and override what the method needs.

    Attributes
    ----------
    from_period : int
        The first period in whose rounds the hook takes part. It is 1 for a method that has nothing to do where nothing
        can be forgotten yet; the runs of a sweep then share their first period.
    needs_period_start : bool
        Send the model of the period's start to clients with every training request.
    keeps_state : bool
        Whether clients keep state from round to round, for the table of methods.
    extra_passes : str
        What a client computes besides a plain step, for the table of methods.
    round_sums : tuple of str
        The vectors that `finish_round` returns for the server, each as long as the trainable parameters. The server
        gets their sums over clients, weighted by samples.
    period_sums : tuple of str
        Those that `finish_period` returns.
    """

    from_period: ClassVar[int] = 0
    needs_period_start: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    extra_passes: ClassVar[str] = "none"
    round_sums: ClassVar[tuple[str, ...]] = ()
    period_sums: ClassVar[tuple[str, ...]] = ()

    def check(self, settings: Any) -> None:
        """Raise an `InputError` if the method can't work with this `[federated]` table."""

    def check_task(self, task: Task, batch: Any, outputs: Any) -> None:
        """Raise an `InputError` if the method can't work with this task, given its outputs for a batch."""

    def batches(self, ctx: LearningContext, epoch: int) -> Iterator[Samples] | None:
        """Return what each step of an epoch trains on; None for shuffled batches of the whole pool."""
        return None

    def loss(self, ctx: LearningContext, step: Step) -> Tensor | None:
        """Return a scalar to add to the mean loss of a step."""
        return None

    def gradient(self, ctx: LearningContext, gradient: Tensor, step: Step) -> Tensor:
        """Return the vector to descend along, given the clipped gradient of a step as one vector."""
        return gradient

    def finish_round(self, ctx: LearningContext, change: Tensor) -> tuple[Sums, State]:
        """Return the `round_sums` and the client's new state after a round changed the parameters by `change`."""
        return {}, ctx.state

    def finish_period(self, ctx: LearningContext) -> tuple[Sums, State]:
        """Return the `period_sums` and the client's new state, with the model at the end of a period."""
        return {}, ctx.state

    def keep(self, ctx: LearningContext, kept: Samples) -> Samples:
        """Return the samples that go into the buffer, perhaps with further columns, such as stored outputs."""
        return kept

    def init(self, parameters: Vector) -> State:
        """Return the server's state before the first round: vectors by name."""
        return {}

    def broadcast(self, state: State) -> State:
        """Return what clients get with every training request, as `received`."""
        return {}

    def server_round(self, sums: State, state: State, info: RoundInfo) -> State:
        """Return the server's state after a round, from the weighted `round_sums`."""
        return state

    def server_period(self, sums: State, state: State, info: RoundInfo) -> State:
        """Return the server's state after a period, from the weighted `period_sums`."""
        return state

    def finish_model(self, model: Vector, period_model: Vector) -> Vector:
        """Return the model after the last round of a period, given it and the one at the period's start."""
        return model


class Algorithm(LearningHook):
    """A hook that also says what the server makes of the clients' changes.

    The server sees the trainable parameters alone. Floating-point buffers of the model, such as the running statistics
    of batch normalization, are averaged over clients whatever the algorithm.
    """

    @abstractmethod
    def update(
        self, parameters: Vector, change: Vector, sums: State, state: State, info: RoundInfo
    ) -> tuple[Vector, State]:
        """Return the new parameters and state from the clients' mean change, weighted by samples."""


_algorithms: Registry[Callable[..., Algorithm]] = Registry("algorithm", "coreplay.learning.algorithms")
_continual: Registry[Callable[..., LearningHook]] = Registry("continual method", "coreplay.learning.continual")


def algorithm(name: str) -> Callable[[H], H]:
    """Decorate a dataclass to make it known as a federated algorithm."""
    return _registering(_algorithms, name)


def continual_method(name: str) -> Callable[[H], H]:
    """Decorate a dataclass to make it known as a continual method."""
    return _registering(_continual, name)


def _registering(registry: Registry[Any], name: str) -> Callable[[H], H]:
    def decorate(kind: H) -> H:
        if not is_dataclass(kind):
            raise InputError(f"{registry.kind} {name!r} must be a dataclass with its options as fields")
        registry.register(name)(kind)
        return kind

    return decorate


def algorithms() -> dict[str, str]:
    """Return the names of all federated algorithms with a one-line description of each.

    >>> algorithms()["fedavg"]
    'Average the models of the clients, weighted by samples.'
    """
    return _algorithms.descriptions()


def continual_methods() -> dict[str, str]:
    """Return the names of all continual methods with a one-line description of each."""
    return _continual.descriptions()


def make_algorithm(name: str, options: Mapping[str, Any] | None = None) -> Algorithm:
    """Return an algorithm with its options set, each of the type that its dataclass says.

    >>> make_algorithm("fedprox", {"mu": 0.1})
    FedProx(mu=0.1)
    """
    made: Algorithm = _algorithms.make(name, options or {})
    return made


class Methods:
    """The algorithm of a run and its continual methods, in the order in which they apply.

    The state of a hook, what it sends and what it sums up are kept under `NAME.key`.

    Parameters
    ----------
    algorithm : str
        The name of the algorithm.
    options : mapping
        Its options.
    continual : mapping
        The names of the continual methods, in order, with the options of each.
    mixing : LearningHook or None
        How kept samples are mixed with new ones, unless it is by concatenation.
    """

    def __init__(
        self,
        algorithm: str,
        options: Mapping[str, Any],
        continual: Mapping[str, Mapping[str, Any]] | None = None,
        mixing: LearningHook | None = None,
    ) -> None:
        self.algorithm_name, self.algorithm = algorithm, make_algorithm(algorithm, options)
        self.hooks: dict[str, LearningHook] = {algorithm: self.algorithm}
        if mixing is not None:
            self.hooks["replay.mixing"] = mixing
        for name, given in (continual or {}).items():
            self.hooks[name] = _continual.make(name, given)
        both = [repr(name) for name in self.overriding("batches")]
        if len(both) > 1:
            raise InputError(f"{' and '.join(both)} each decide what a step trains on: use one of them")
        related = [name for name in self.hooks if name in ("der", "der_pp")]
        if len(related) > 1:
            raise InputError("continual methods 'der' and 'der_pp' exclude each other: use one of them")

    def during(self, period: int) -> "Methods":
        """Return those that take part in the rounds of a period."""
        found = copy(self)
        found.hooks = {name: hook for name, hook in self.hooks.items() if hook.from_period <= period}
        return found

    def overriding(self, method: str) -> dict[str, LearningHook]:
        """Return the hooks that override a method, by name."""
        base = getattr(LearningHook, method)
        return {name: hook for name, hook in self.hooks.items() if getattr(type(hook), method) is not base}

    @property
    def keep_state(self) -> bool:
        """Whether some hook may keep state at the clients."""
        return bool(self.overriding("finish_round") or self.overriding("finish_period"))

    @property
    def needs_period_start(self) -> bool:
        """Whether clients need the model of the period's start."""
        return any(hook.needs_period_start for hook in self.hooks.values())

    @property
    def keep_period_start(self) -> bool:
        """Whether the server must remember the model of the period's start."""
        return self.needs_period_start or bool(self.overriding("finish_model"))

    def finish_model(self, model: Vector, period_model: Vector | None) -> Vector:
        """Return what the hooks make of the model after the last round of a period."""
        for hook in self.overriding("finish_model").values():
            assert period_model is not None, "keep_period_start"
            model = hook.finish_model(model, period_model)
        return model

    @property
    def round_sums(self) -> list[str]:
        """The names of the vectors that clients send after a round, besides the change of the model."""
        return [f"{name}.{key}" for name, hook in self.hooks.items() for key in hook.round_sums]

    @property
    def period_sums(self) -> list[str]:
        """The names of the vectors that clients send after a period."""
        return [f"{name}.{key}" for name, hook in self.hooks.items() for key in hook.period_sums]

    def init(self, parameters: Vector) -> dict[str, NDArray[Any]]:
        """Return the server's state before the first round."""
        return joined({name: hook.init(parameters) for name, hook in self.hooks.items()})

    def broadcast(self, state: State) -> dict[str, NDArray[Any]]:
        """Return what goes to clients besides the model."""
        return joined({name: hook.broadcast(part(state, name)) for name, hook in self.hooks.items()})

    def update(
        self, parameters: Vector, change: Vector, sums: State, state: State, info: RoundInfo
    ) -> tuple[Vector, dict[str, NDArray[Any]]]:
        """Return the new parameters and the server's new state after a round."""
        name = self.algorithm_name
        updated, own = self.algorithm.update(parameters, change, part(sums, name), part(state, name), info)
        whole = info.step == 1
        parameters = updated if whole else parameters + updated.dtype.type(info.step) * (updated - parameters)
        states: dict[str, State] = {name: own}
        info = replace(info, parameters=parameters)
        for other, hook in self.hooks.items():
            if other != name:
                states[other] = hook.server_round(part(sums, other), part(state, other), info)
        return parameters, {**state, **joined(states)}

    def end_period(self, sums: State, state: State, info: RoundInfo) -> dict[str, NDArray[Any]]:
        """Return the server's new state after a period."""
        return joined(
            {name: hook.server_period(part(sums, name), part(state, name), info) for name, hook in self.hooks.items()}
        )


def part(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what is kept under the name of a hook.

    >>> part({"scaffold.control": 1, "ewc.fisher": 2}, "ewc")
    {'fisher': 2}
    """
    return {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}


def joined(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Put the values of all hooks under their names."""
    return {f"{name}.{key}": value for name, values in parts.items() for key, value in values.items()}


def checked_state(values: State, hook: str, where: str) -> dict[str, NDArray[Any]]:
    """Return a hook's state as arrays that can be stored, or raise a `HookError`."""
    if not isinstance(values, Mapping):
        raise HookError(f"{hook!r} {where}: the state must be arrays by name: got {type(values).__name__}")
    found: dict[str, NDArray[Any]] = {}
    for key, value in values.items():
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        if not isinstance(key, str) or array.dtype.kind not in "fiub":
            raise HookError(f"{hook!r} {where}: state {key!r} can't be stored: it has dtype {array.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise HookError(f"{hook!r} {where}: state {key!r} has NaN or infinity")
        found[key] = np.array(array)
    return found


def checked_sums(values: Sums, names: tuple[str, ...], size: int, hook: str, where: str) -> dict[str, Tensor]:
    """Return the vectors that a hook gives to the server, or raise a `HookError`."""
    if not isinstance(values, Mapping) or set(values) != set(names):
        got = sorted(values) if isinstance(values, Mapping) else type(values).__name__
        raise HookError(f"{hook!r} {where}: must return the sums {sorted(names)}: got {got}")
    found = {key: torch.as_tensor(values[key]).detach() for key in names}
    for key, vector in found.items():
        if tuple(vector.shape) != (size,):
            raise HookError(f"{hook!r} {where}: sum {key!r} must have shape ({size},): got {tuple(vector.shape)}")
        if not torch.isfinite(vector).all():
            raise HookError(f"{hook!r} {where}: sum {key!r} has NaN or infinity")
    return found
