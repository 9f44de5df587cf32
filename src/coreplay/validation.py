"""Checks of values that users give: options of anything registered, and tables of a configuration."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from os import PathLike, fspath
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails

from coreplay.errors import InputError, unknown

T = TypeVar("T")
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
TestFraction = Annotated[float, Field(ge=0, lt=1)]

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "path_type": "a path",
    "bool_type": "true or false",
    "none_required": "absent",
    "list_type": "a list",
    "missing": "a longer list, with a value",
    "tuple_type": "a list",
    "dict_type": "a table",
    "mapping_type": "a table",
    "dataclass_type": "a table",
    "dataclass_exact_type": "a table",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
}


def check_value(value: Any, annotation: Any, what: str) -> Any:
    """Return a value as its annotation wants it; otherwise raise an `InputError` that names it and what was expected.

    Values are taken as a TOML or JSON file gives them: a string is a path where one is wanted, and a list is a tuple,
    but "3" is not a number, and neither is true or NaN. Bounds such as `Annotated[int, Field(ge=1)]` are honoured.

    >>> check_value(3, int, "clients"), check_value(1, float | None, "alpha")
    (3, 1.0)
    >>> check_value("3", int, "option 'clients'")
    Traceback (most recent call last):
    coreplay.errors.InputError: option 'clients': got '3': must be a whole number
    """
    adapter, value = _adapter(annotation), _plain(value)
    if adapter is None:
        return value
    try:
        try:
            found = adapter.validate_python(value, strict=True)
        except ValidationError:
            if not isinstance(value, str | PathLike | list | tuple | Mapping):
                raise
            found = adapter.validate_json(json.dumps(value, default=fspath), strict=True)  # has no paths and tuples
    except ValidationError as error:
        raise InputError(f"{what}: got {value!r}: {problem(error.errors())}") from None
    except (TypeError, ValueError) as error:  # of values inside that are not JSON's
        raise InputError(f"{what}: got {value!r}: {error}") from None
    parts = found if isinstance(found, list | tuple) else [found]
    if any(isinstance(part, float) and math.isnan(part) for part in parts):
        raise InputError(f"{what}: got {value!r}: must be a number")
    return found


def make_table(kind: type[T], given: Any, name: str) -> T:
    """Make a dataclass of a table of a configuration, or check one that is made; None gives the defaults.

    >>> from coreplay.data import Periods
    >>> make_table(Periods, {"days": 7}, "periods").days
    7.0
    """
    if isinstance(given, kind):
        given = vars(given)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(given, Mapping | None):
        raise InputError(f"{name} must be a table of options ({', '.join(known)}): got {given!r}")
    types: dict[str, Any] = type_hints(kind)  # type: ignore[arg-type]
    for key in given or {}:
        if key not in known:
            raise unknown("option", key, known, of=f" of {name}")
    return kind(**{key: check_value(value, types[key], f"{name}.{key}") for key, value in (given or {}).items()})


def problem(errors: list[ErrorDetails]) -> str:
    """Return in a phrase what pydantic expected of a value; of a union, every alternative.

    >>> problem([{"type": "greater_than_equal", "msg": "", "loc": (), "input": -1, "ctx": {"ge": 0}}])
    'must be at least 0'
    """
    wanted = []
    for error in errors:
        if error["type"] in _EXPECTED:
            bounds = {key: f"{v:g}" if isinstance(v, float) else v for key, v in error.get("ctx", {}).items()}
            inside = f" at {error['loc'][-1]}" if error["loc"] and isinstance(error["loc"][-1], int) else ""
            wanted.append(_EXPECTED[error["type"]].format(**bounds) + inside)
        elif error["type"] == "is_instance_of":
            wanted.append({"Path": "a path", "Sequence": "a list"}.get(error["ctx"]["class"], error["msg"][16:]))
        elif error["msg"].startswith("Input should be "):
            wanted.append(error["msg"].removeprefix("Input should be "))
        else:
            text = error["msg"].removeprefix("Value error, ")
            return text[:1].lower() + text[1:]
    return f"must be {' or '.join([text for text in dict.fromkeys(wanted) if text != 'absent'] or wanted[:1])}"


@cache
def type_hints(entry: Any) -> dict[str, Any]:
    """Return the annotations of a function's parameters or a class's fields; none that can't be resolved."""
    try:
        found = get_type_hints(entry, include_extras=True)
        for kind in reversed(entry.__mro__) if isinstance(entry, type) else ():
            if "__init__" in vars(kind) and kind is not object:
                found |= get_type_hints(vars(kind)["__init__"], include_extras=True)
    except (NameError, TypeError):
        return {}
    return found


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """Return what checks values of an annotation; None for one that pydantic does not know, such as an array."""
    for config in (ConfigDict(arbitrary_types_allowed=True), None):  # a dataclass brings its own
        try:
            return TypeAdapter(annotation, config=config)
        except (PydanticUserError, TypeError, NameError):
            continue
    return None


def _plain(value: Any) -> Any:
    """Return a NumPy number as Python's own."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def whole_number(value: Any, name: str, *, least: int) -> int:
    """Return an integer argument of at least `least`.

    >>> whole_number(2.5, "budget", least=1)
    Traceback (most recent call last):
    coreplay.errors.InputError: budget must be a whole number: got 2.5
    """
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number: got {value!r}")
    if value < least:
        raise InputError(f"{name} must be at least {least}: got {value}")
    return value
