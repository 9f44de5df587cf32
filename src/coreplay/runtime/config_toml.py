"""A configuration as TOML, and what is wrong with one in a sentence."""

import json
import math
from collections.abc import Mapping
from copy import deepcopy
from datetime import date, time
from typing import Any

from pydantic import BaseModel, ValidationError

from coreplay.errors import InputError, unknown
from coreplay.validation import problem


def explained(error: ValidationError, model: type[BaseModel], where: str) -> InputError:
    """Say in one line what is wrong with the first wrong value, with the nearest name for an unknown one."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        part = model
        for key in place[:-1]:
            part = type(part.model_fields[key].get_default(call_default_factory=True))
        section = f" in [{'.'.join(place[:-1])}]" if len(place) > 1 else ""
        return InputError(f"{where}: {unknown('key', place[-1], part.model_fields, of=section)}")
    return InputError(f"{where}: {name} = {first['input']!r}: {problem([first])}")


def written(part: BaseModel, prefix: str = "") -> list[str]:
    """Return the lines of a table, each value with its meaning as a comment."""
    lines: list[str] = []
    tables: list[str] = []
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            tables += ["", f"# {field.description}", f"[{prefix}{name}]", *written(value, f"{prefix}{name}.")]
            continue
        lines.append(f"# {field.description}")
        lines.append(f"# {name} =" if value is None else f"{name} = {toml_value(value)}")
    return lines + tables


def toml_value(value: Any) -> str:
    """Write a value as TOML: JSON does for all but tables."""
    if isinstance(value, Mapping):
        given = {k: v for k, v in value.items() if v is not None}  # TOML has no word for nothing
        inner = ", ".join(f"{json.dumps(str(k), ensure_ascii=False)} = {toml_value(v)}" for k, v in given.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan: JSON has other words for them
    if value is None:
        raise InputError("a list in the configuration holds None, which TOML can't say: leave it out of the list")
    if isinstance(value, date | time):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted name.

    >>> flatten({"stream": {"options": {"num_clients": 5}}, "seed": 0})
    {'stream.options.num_clients': 5, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def merge(target: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Put nested values into a nested dict, in place of those that it has."""
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = deepcopy(value)
