"""Nested mappings, lists and tuples: find the arrays in them, rebuild them with others."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch


def arrays_in(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every tensor and array with the path that leads to it.

    >>> [path for path, _ in arrays_in({"a": (torch.ones(1), "no"), "b": torch.ones(2)}, "batch")]
    ["batch['a'][0]", "batch['b']"]
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from arrays_in(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from arrays_in(item, f"{path}[{position}]")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor."""
    return (leaf for _, leaf in arrays_in(value) if isinstance(leaf, torch.Tensor))


def rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same nesting with `change` of every tensor and array, taken in `arrays_in` order."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: rebuild(item, change) for key, item in value.items()}
        kind: Callable[..., Any] = type(value)
        return items if kind is dict else kind(items)
    if isinstance(value, list | tuple):
        parts = [rebuild(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
