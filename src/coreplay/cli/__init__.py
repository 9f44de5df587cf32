"""The command line: thin, with an example in every --help, and errors without tracebacks.

Heavy libraries are imported inside the commands that use them, so that `coreplay --help` answers at once.
"""

import json
import math
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand

from coreplay.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="Option as name=value; the value may be JSON. Repeatable.")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="A .py file or module of your own that registers selectors, tasks and so on."),
]
Seed = Annotated[int, typer.Option(help="Seed of every random choice.")]


class Command(TyperCommand):
    """A command whose repeatable options take several values after one name: --n 10 30 50."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:  # click 8.5 replaces the help of arguments in its constructor
            if isinstance(parameter, TyperArgument):
                parameter.help = hints[str(parameter.name)].__metadata__[0].help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `--n 10 30` as `--n 10 --n 30`, which is what click understands; arguments come before options."""
        many = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        repeated: list[str] = []
        current = None
        for arg in args:
            if arg.startswith("-"):
                current = arg if arg in many else None
            elif current and repeated[-1] != current:
                repeated.append(current)
            repeated.append(arg)
        return super().parse_args(ctx, repeated)


def parse_options(pairs: list[str] | None, flag: str = "--option") -> dict[str, Any]:
    """Parse name=value pairs; values are JSON where they can be, or inf, else strings.

    >>> parse_options(["clients=20", "path=a.jsonl", "alpha=inf"])
    {'clients': 20, 'path': 'a.jsonl', 'alpha': inf}
    """
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{flag} must be name=value: got {pair!r}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = math.inf if value == "inf" else value
    return options


def load_plugins(plugins: list[str] | None) -> None:
    """Load the plugins that the command line names."""
    if plugins:
        from coreplay.plugins import load_plugins as load

        load(plugins)


def main() -> None:
    """Run the command line."""
    from coreplay.cli.app import main as run

    run()
