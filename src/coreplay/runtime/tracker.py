"""Trackers: where else the metrics of a run go, besides its folder; and the registry of them.

A tracker is a class made with (config, folder) when a run begins or goes on. It is called with every event and closed
at the end. It is registered with `tracker` in a separate file in `coreplay.runtime.trackers`, or in any module of
yours, with the packages that it needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from coreplay.errors import InputError, unknown
from coreplay.registry import Registry
from coreplay.runtime.events import Event

if TYPE_CHECKING:
    from coreplay.runtime.config import Config

T = TypeVar("T", bound=type["Tracker"])


class Tracker(ABC):
    """What a user subclasses."""

    packages: tuple[str, ...] = ()

    def __init__(self, config: "Config", folder: Path) -> None:
        self.config, self.folder = config, folder

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take note of an event."""

    def close(self) -> None:  # noqa: B027  there may be nothing to close
        """Write what is left; the run may go on later."""

    def step(self, event: Event) -> int:
        """Return the rounds trained when an event happened: the same number again if the run goes on from there."""
        return self.config.federated.rounds_before(event.period) + event.round


_registry: Registry[Callable[["Config", Path], Tracker]] = Registry("tracker", "coreplay.runtime.trackers")


def tracker(name: str, packages: tuple[str, ...] = ()) -> Callable[[T], T]:
    """Decorate a class to make it known under `name`; `packages` must be there for it to work."""

    def decorate(kind: T) -> T:
        kind.packages = packages
        _registry.register(name)(kind)
        return kind

    return decorate


def trackers() -> dict[str, str]:
    """Return the names of all trackers with a one-line description of each.

    >>> sorted(trackers())
    ['mlflow', 'tensorboard']
    """
    return _registry.descriptions()


def check_trackers(names: Iterable[str], *, installed: bool = False) -> None:
    """Raise an `InputError` for an unknown tracker, and, if asked, for one whose packages are missing."""
    for name in names:
        if name not in _registry:
            raise unknown("tracker", name, trackers())
        packages = getattr(_registry[name], "packages", ())
        missing = [package for package in packages if installed and find_spec(package) is None]
        if missing:
            raise InputError(
                f"tracker {name!r} needs {' and '.join(missing)}: install it with pip install 'coreplay[trackers]'"
            )


def make_tracker(name: str, config: "Config", folder: Path) -> Tracker:
    """Return a tracker for the run in this folder."""
    return _registry[name](config, folder)
