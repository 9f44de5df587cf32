"""A registry: one new file and one decorator add a selector, a layer rule or a task."""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar, get_type_hints

from coreplay.errors import InputError, unknown
from coreplay.kinds import check_kind

F = TypeVar("F", bound=Callable[..., Any])
own: dict[tuple[str, str], str] = {}  # the kind and name of what is registered outside this package: its module


class Registry(Generic[F]):
    """Named functions of one kind; the first line of a function's docstring is its description.

    `home` is the package whose modules register our own on import; they are imported when somebody first asks.

    >>> greetings = Registry("greeting")
    >>> @greetings.register("hello")
    ... def hello(name, *, loud=False):
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

    @property
    def _known(self) -> dict[str, F]:
        if self._home is not None:
            package = import_module(self._home)
            for module in pkgutil.iter_modules(package.__path__):
                import_module(f"{package.__name__}.{module.name}")
            self._home = None
        return self._entries

    def register(self, name: str) -> Callable[[F], F]:
        """Decorate a function to make it known under `name`."""

        def decorate(function: F) -> F:
            if name in self._entries:
                raise InputError(f"{self.kind} {name!r} is registered twice: choose another name")
            self._entries[name] = function
            if function.__module__.partition(".")[0] != "coreplay":
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
        """Names with the first line of each docstring, in order of registration."""
        return {name: (inspect.getdoc(f) or "").partition("\n")[0] for name, f in self._known.items()}

    def options(self, name: str, given: Mapping[str, Any], *, complete: bool = True) -> dict[str, Any]:
        """Check that each option is a keyword-only parameter of the entry and fits it, and none needed is missing.

        What is not `complete` yet may lack some.
        """
        known, kinds = keywords(self[name]), _annotations(self[name])
        for option, value in given.items():
            if option not in known:
                raise unknown("option", option, known, of=f" of {self.kind} {name!r}")
            check_kind(option, value, kinds.get(option, Any), f" (an option of {self.kind} {name!r})")
        for option, parameter in known.items():
            if complete and parameter.default is parameter.empty and option not in given:
                raise InputError(f"{self.kind} {name!r} needs the option {option!r}: give it a value")
        return dict(given)


@cache
def keywords(entry: Any) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a function or a class; `**options` of a class stand for its base's."""
    parameters = inspect.signature(entry).parameters.values()
    found = {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    if isinstance(entry, type) and any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        found |= keywords(entry.__mro__[1])
    return found


@cache
def _annotations(entry: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's or a class's parameters, as far as they can be resolved."""
    functions = (
        [vars(c)["__init__"] for c in reversed(entry.__mro__) if "__init__" in vars(c)]
        if isinstance(entry, type)
        else [entry]
    )
    try:
        return {name: kind for function in functions for name, kind in get_type_hints(function).items()}
    except (NameError, TypeError):
        return {}
