"""Names that are loaded on first use, so that importing a package stays quick and needs only what is used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_getattr(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names live in the given modules.

    >>> lazy_getattr("roots", {"sqrt": "math"})("sqrt")(9)
    3.0
    """

    def load(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
