"""Errors that a user can act on: they name the argument, the value and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Wrong input, found before any long work starts; the command line shows it without a traceback."""


class RefusedError(InputError):
    """Why a client can't do what a request asks, in words that the server may read: never anything of its data."""


def unknown(kind: str, name: object, known: Iterable[str], *, of: str = "") -> InputError:
    """Build the error for a name that is not among `known`, with a suggestion if one of them is near.

    >>> print(unknown("method", "polishd", ["exact", "polished"]))
    unknown method 'polishd': did you mean 'polished'? (known: exact, polished)
    >>> print(unknown("option", "x", [], of=" of method 'herding'"))
    unknown option 'x' of method 'herding' (known: none)
    """
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1, cutoff=0.7)
    hint = f": did you mean '{near[0]}'?" if near else ""
    return InputError(f"unknown {kind} {str(name)!r}{of}{hint} (known: {', '.join(names) or 'none'})")
