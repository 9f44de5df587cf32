"""Registries: one file and one decorator add a selector, a task, a source or anything else that has a name."""

import inspect
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from coreplay.errors import InputError, unknown
from coreplay.validation import check_value, type_hints

ENTRY_POINTS = "coreplay.plugins"  # the group by which an installed package offers its own

F = TypeVar("F", bound=Callable[..., Any])
own: dict[tuple[str, str], str] = {}  # the kind and name of what is registered outside this package: its module
origins: dict[str, str] = {}  # the files from which modules were loaded as plugins
_registries: WeakSet["Registry[Any]"] = WeakSet()
_offered = False  # whether installed packages were asked


class PluginWarning(UserWarning):
    """A plugin does not do what plugins are for; the rest goes on without it."""


class Registry(Generic[F]):
    """Named functions of one kind, each described by the first line of its docstring.

    On first use the modules of the package `home` are imported, which register coreplay's own functions.

    >>> greetings = Registry("greeting")
    >>> @greetings.register("hello")
    ... def hello(name, *, loud: bool = False):
    ...     "Say hello."
    ...     return f"hello {name}" + "!" * loud
    >>> greetings.descriptions()
    {'hello': 'Say hello.'}
    >>> greetings["hello"]("you", **greetings.options("hello", {"loud": True}))
    'hello you!'
    """

    def __init__(self, kind: str, home: str | None = None) -> None:
        self.kind = kind
        self._home = home
        self._entries: dict[str, F] = {}
        _registries.add(self)

    @property
    def _known(self) -> dict[str, F]:
        self._load_home()
        _load_entry_points()
        return self._entries

    def _load_home(self) -> None:
        if self._home is not None:
            for module in pkgutil.iter_modules(import_module(self._home).__path__):
                import_module(f"{self._home}.{module.name}")
            self._home = None
            # tables list them by module, whichever was imported first
            self._entries = dict(sorted(self._entries.items(), key=lambda item: item[1].__module__))

    def register(self, name: str) -> Callable[[F], F]:
        """Decorate a function to make it known under `name`."""

        def decorate(function: F) -> F:
            outside = function.__module__.partition(".")[0] != "coreplay"
            if outside:
                self._load_home()  # so that a name of coreplay's is refused here
            if name in self._entries and not _same_cell(self._entries[name], function):
                known = self._entries[name].__module__
                whose = f"plugin {origins[known]!r}" if known in origins else f"module {known!r}"
                raise InputError(f"{self.kind} {name!r} is known already, from {whose}: choose another name")
            self._entries[name] = function
            if outside:
                own[self.kind, name] = function.__module__
            return function

        return decorate

    def __getitem__(self, name: str) -> F:
        try:
            return self._known[name]
        except KeyError:
            raise unknown(self.kind, name, self._known) from None

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def descriptions(self) -> dict[str, str]:
        """Return the names with the first line of each docstring, in order of registration."""
        return {name: (inspect.getdoc(f) or "").partition("\n")[0] for name, f in self._known.items()}

    def options(self, name: str, given: Mapping[str, Any], *, complete: bool = True) -> dict[str, Any]:
        """Return options, which are keyword-only parameters of the entry, as its annotations want them.

        An option without a default may be missing only if the options are not `complete` yet.
        """
        known, types = keywords(self[name]), type_hints(self[name])
        owner = f" of {self.kind} {name!r}"
        checked = {}
        for option, value in given.items():
            if option not in known:
                raise unknown("option", option, known, of=owner)
            checked[option] = check_value(value, types.get(option, Any), f"option {option!r}{owner}")
        for option, parameter in known.items():
            if complete and parameter.default is parameter.empty and option not in given:
                raise InputError(f"{self.kind} {name!r} needs the option {option!r}: give it a value")
        return checked

    def make(self, name: str, given: Mapping[str, Any]) -> Any:
        """Make an entry that is a class with its options; what its own check refuses is an `InputError`."""
        options = self.options(name, given)
        try:
            return self[name](**options)
        except (ValueError, TypeError) as error:
            raise InputError(f"{self.kind} {name!r}: {error}") from None


@cache
def keywords(entry: Any) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a function or a class; `**options` of a class stand for its base's."""
    parameters = inspect.signature(entry).parameters.values()
    found = {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    if isinstance(entry, type) and any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        found |= keywords(entry.__mro__[1])
    return found


def _same_cell(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Return whether a function replaces its earlier self, because a notebook cell was run again."""
    return old.__module__ == new.__module__ == "__main__" and old.__qualname__ == new.__qualname__


def forget(module: str) -> None:
    """Remove what a module has registered, because the rest of it could not be imported."""
    for registry in _registries:
        for name in [name for name, entry in registry._entries.items() if entry.__module__ == module]:
            del registry._entries[name], own[registry.kind, name]


def _load_entry_points() -> None:
    """Import what installed packages offer, once; a broken package is named and left out."""
    global _offered  # noqa: PLW0603  once per process
    if _offered:
        return
    _offered = True
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:  # whatever is wrong with somebody's package
            package = point.dist.name if point.dist is not None else point.value
            text = f"plugin {point.name!r} of the installed package {package!r} can't be loaded: "
            text += f"{type(error).__name__}: {error}; repair or uninstall it"
            warnings.warn(text, PluginWarning, stacklevel=2)
