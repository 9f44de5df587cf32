"""What a gradient matrix is computed from: a model, a loss, a batch of samples and the selected parameters.

A batch is any nesting of mappings, lists and tuples whose tensors have the samples in dimension 0.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from coreplay.errors import InputError


def arrays_in(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every tensor and array with the path that leads to it.

    >>> [path for path, _ in arrays_in({"a": (torch.ones(1), "no"), "b": torch.ones(2)}, "batch")]
    ["batch['a'][0]", "batch['b']"]
    """
    if isinstance(value, Tensor | np.ndarray):
        yield path, value
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from arrays_in(item, f"{path}[{key!r}]")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor."""
    return (leaf for _, leaf in arrays_in(value) if isinstance(leaf, Tensor))


def rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same nesting with `change` of every tensor and array, taken in `arrays_in` order."""
    if isinstance(value, Tensor | np.ndarray):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: rebuild(item, change) for key, item in value.items()}
        kind: Callable[..., Any] = type(value)
        return items if kind is dict else kind(items)
    if isinstance(value, list | tuple):
        parts = [rebuild(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def batch_size(batch: Any) -> int:
    """Return how many samples the batch holds, after checking that all its tensors agree.

    >>> batch_size({"ids": torch.zeros(3, 5), "pair": (torch.zeros(3), None)})
    3
    """
    sizes: dict[str, int] = {}
    for path, leaf in arrays_in(batch, "batch"):
        if leaf.ndim == 0:
            raise InputError(f"{path} must have the samples in its first dimension: got one number; repeat it")
        sizes[path] = len(leaf)
    if not sizes:
        raise InputError(f"batch must hold at least one tensor: got {type(batch).__name__}")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{path} has {size}" for path, size in sizes.items())
        raise InputError(f"batch tensors must agree in their first dimension, the samples: {found}")
    n = next(iter(sizes.values()))
    if n == 0:
        raise InputError("batch must hold at least one sample: got 0")
    return n


@dataclass(frozen=True)
class Selected:
    """The selected parameters by name, in `named_parameters()` order; a tied parameter appears once."""

    parameters: dict[str, nn.Parameter]

    @cached_property
    def names(self) -> dict[int, str]:
        """Name of each selected parameter by its identity."""
        return {id(parameter): name for name, parameter in self.parameters.items()}

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Place of each parameter in the flat vector."""
        slices, start = {}, 0
        for name, parameter in self.parameters.items():
            slices[name] = slice(start, start + parameter.numel())
            start += parameter.numel()
        return slices

    @cached_property
    def dimension(self) -> int:
        """Length of the flat vector."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    @cached_property
    def like(self) -> Tensor:
        """An empty tensor with the parameters' dtype and device."""
        return next(iter(self.parameters.values())).detach().new_empty(0)


def select_parameters(model: nn.Module, patterns: str | Iterable[str] | None) -> Selected:
    """Return the trainable parameters whose name matches one of the shell-style patterns, all if None is given.

    A tied parameter matches under any of its names.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> list(select_parameters(model, "1.*").parameters)
    ['1.weight', '1.bias']
    """
    wanted = ["*"] if patterns is None else [patterns] if isinstance(patterns, str) else list(patterns)
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    matched = {
        name: parameter
        for name, parameter in model.named_parameters()
        if any(fnmatchcase(alias, pattern) for alias in aliases[id(parameter)] for pattern in wanted)
    }
    if not matched and aliases and patterns is not None:
        names = [name for group in aliases.values() for name in group]
        near = get_close_matches(str(wanted[0]) if wanted else "", names, n=1, cutoff=0.0)[0]
        raise InputError(
            f"parameters={patterns!r} matches no parameter of the model: patterns are shell-style, as in "
            f"'layer.*' or '*.weight'; the nearest name is {near!r}"
        )
    trainable = {name: parameter for name, parameter in matched.items() if parameter.requires_grad}
    if not trainable:
        chosen = "the model" if patterns is None else f"parameters={patterns!r}"
        raise InputError(
            f"{chosen} has no trainable parameter ({len(matched)} are frozen): "
            "set requires_grad on those whose gradient is wanted"
        )
    kinds = {(parameter.dtype, parameter.device) for parameter in trainable.values()}
    if len(kinds) > 1:
        raise InputError(
            f"the parameters must share one dtype and one device: got {sorted(map(str, kinds))}; "
            "convert the model or select fewer parameters"
        )
    ((dtype, _),) = kinds
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"the parameters must be float32 or float64: got {dtype}; call model.float() first")
    return Selected(trainable)


PerSampleLoss: TypeAlias = Callable[[Any, Any], Tensor]
_SHOWN = 5  # samples that an error names


@dataclass(frozen=True)
class Problem:
    """A model, a per-sample loss, a batch of `n` samples, the selected parameters, and options of `gradient_matrix`."""

    model: nn.Module
    per_sample_loss: PerSampleLoss
    batch: Any
    n: int
    selected: Selected
    batch_first: bool = False
    probe_cache: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def storages(self) -> frozenset[int]:
        """The memory that is there anyway: the model's and the batch's."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *tensors_in(self.batch)]
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)

    def losses(self, start: int, stop: int) -> Tensor:
        """Return the losses of the samples `start` up to `stop`, checked."""
        losses = self.per_sample_loss(self.model, rebuild(self.batch, lambda leaf: leaf[start:stop]))
        count = stop - start
        if not isinstance(losses, Tensor):
            raise InputError(f"per_sample_loss must return a tensor: got {type(losses).__name__}")
        if losses.shape != (count,):
            given = "" if losses.dim() == 0 or count == self.n else f" when called with {count} of them"
            hint = "; use reduction='none' and sum within each sample" if losses.dim() != 1 else ""
            raise InputError(
                f"per_sample_loss must return one loss per sample, shape ({self.n},) for this batch of {self.n}: "
                f"got shape {tuple(losses.shape)}{given}{hint}"
            )
        if not losses.is_floating_point():
            raise InputError(f"per_sample_loss must return floating-point losses: got {losses.dtype}")
        _check_finite(losses.detach(), start, "loss", "check these samples, or clip the loss")
        return losses


def check_gradients(norms: Tensor, reached: bool) -> None:
    """Refuse gradients that are not finite, and a loss that has none at all; single samples may have none."""
    _check_finite(norms, 0, "gradient", "the loss is finite there but has no derivative; smooth it")
    if not reached:
        raise InputError(
            "per_sample_loss must depend on the selected parameters: got losses through which autograd reaches none of "
            "them, for any sample; compute them from the model's output without detach(), item(), numpy or "
            "torch.no_grad(), or select parameters that the loss uses"
        )


def _check_finite(values: Tensor, start: int, what: str, remedy: str) -> None:
    bad = (~torch.isfinite(values)).nonzero().flatten().tolist()
    if bad:
        found = ", ".join(f"sample {start + i}: {values[i].item()}" for i in bad[:_SHOWN])
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise InputError(f"the {what} must be finite for every sample: got {found}{more}; {remedy}")


@contextmanager
def frozen_state(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode for a while; afterwards everything is as before, also after an error.

    In training mode dropout would make gradients random, and batch statistics would couple the samples. `.grad` needs
    no care, since nothing here ever writes to it.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer._version, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - theirs, not ours
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.enable_grad():
            model.eval()
            # cuDNN's recurrent layers refuse a backward pass in evaluation mode
            with torch.backends.cudnn.flags(enabled=False) if devices else torch.enable_grad():
                yield
    finally:
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, version, copy in buffers:
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copy)
            module._buffers[name] = buffer
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
