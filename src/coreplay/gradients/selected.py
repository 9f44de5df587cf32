"""Which parameters the gradient runs over, and where each one sits in the flat vector."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import nn

from coreplay.errors import InputError


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
    def like(self) -> torch.Tensor:
        """An empty tensor with the parameters' dtype and device."""
        return next(iter(self.parameters.values())).detach().new_empty(0)


def select_parameters(model: nn.Module, patterns: str | Iterable[str] | None) -> Selected:
    """Return the trainable parameters whose name matches one of the shell-style patterns.

    A tied parameter matches under any of its names. `None` selects every trainable parameter.

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
    _check_kind(trainable)
    return Selected(trainable)


def _check_kind(parameters: dict[str, nn.Parameter]) -> None:
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters.values()}
    if len(kinds) > 1:
        raise InputError(
            f"the parameters must share one dtype and one device: got {sorted(map(str, kinds))}; "
            "convert the model or select fewer parameters"
        )
    ((dtype, _),) = kinds
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"the parameters must be float32 or float64: got {dtype}; call model.float() first")
