"""Whether a value is of the kind that an option's annotation asks for."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from coreplay.errors import InputError

_SIMPLE = {int: "a whole number", float: "a number", str: "a text", Path: "a path", bool: "true or false"}


def check_kind(name: str, value: Any, annotation: Any, of: str = "") -> None:
    """Refuse a value of another kind; annotations that are more than numbers, texts and truth values are not looked at.

    NaN is no number; infinity is one, and who can't use it says so.

    >>> check_kind("clients", 3, int), check_kind("alpha", 1, float | None), check_kind("x", "any", Any)
    (None, None, None)
    >>> check_kind("clients", "abc", int)
    Traceback (most recent call last):
    coreplay.errors.InputError: clients must be a whole number: got 'abc'
    """
    union = get_origin(annotation) in (Union, UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    if not all(kind in _SIMPLE or kind is NoneType for kind in kinds) or any(_is(value, kind) for kind in kinds):
        return
    wanted = [_SIMPLE[kind] for kind in kinds if kind in _SIMPLE]
    raise InputError(f"{name} must be {' or '.join(wanted)}: got {value!r}{of}")


def check_fields(kind: str, given: Any, annotations: Mapping[str, Any]) -> None:
    """Refuse what is no table, and values in it of another kind than these annotations."""
    if not isinstance(given, Mapping):
        raise InputError(f"{kind} must be a table of options ({', '.join(annotations)}): got {given!r}")
    for name, value in given.items():
        check_kind(f"{kind}.{name}", value, annotations.get(name, Any))


def _is(value: Any, kind: Any) -> bool:
    if kind is NoneType:
        return value is None
    if isinstance(value, bool):
        return kind is bool
    if kind is int:
        return isinstance(value, Integral)
    if kind is float:
        return isinstance(value, Real) and not math.isnan(value)
    return isinstance(value, str | Path) if kind is Path else isinstance(value, kind)
