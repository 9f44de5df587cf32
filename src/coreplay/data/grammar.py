"""The assistant's grammar: patterns with choices and slots, expanded once into lists.

``(a|b|)`` stands for a, b or nothing; ``{slot}`` for a value of that slot. A slot's own values are expanded wholly, so
that one draw is one index. A pattern becomes its variants without choices, each a list of pieces: literal, slot,
literal, ...
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product

from coreplay.errors import unknown

_CHOICE = re.compile(r"\(([^()]*)\)")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Grammar:
    """Slots with their values, intents with their patterns (literal, slot, literal, ...), domains with intents."""

    slots: dict[str, tuple[str, ...]]
    intents: dict[str, tuple[tuple[str, ...], ...]]
    domains: dict[str, tuple[str, ...]]


@cache
def assistant() -> Grammar:
    """Return the embedded grammar.

    >>> grammar = assistant()
    >>> len(grammar.domains) >= 12, len(grammar.intents) >= 60, sum(map(len, grammar.slots.values())) > 5000
    (True, True, True)
    """
    return parse(files("coreplay.data").joinpath("assistant.toml").read_text(encoding="utf-8"))


def parse(text: str) -> Grammar:
    """Read a grammar in TOML: a table of slots, and a table of intents for each domain."""
    tables = tomllib.loads(text)
    raw: dict[str, list[str]] = tables["slots"]
    slots: dict[str, tuple[str, ...]] = {}

    def values(slot: str) -> tuple[str, ...]:
        if slot not in raw:
            raise unknown("slot", slot, raw)
        if slot not in slots:
            slots[slot] = tuple(dict.fromkeys(text for form in raw[slot] for text in _filled(form, values)))
        return slots[slot]

    for slot in raw:
        values(slot)
    patterns = {
        name: tuple(tuple(_SLOT.split(variant)) for form in forms for variant in choices(form))
        for domain in tables["intents"].values()
        for name, forms in domain.items()
    }
    for forms in patterns.values():
        for pattern in forms:
            for slot in pattern[1::2]:
                values(slot)
    return Grammar(slots, patterns, {name: tuple(domain) for name, domain in tables["intents"].items()})


def choices(form: str) -> list[str]:
    """Return the variants of a form, with single spaces.

    >>> choices("(turn|make) it( a bit|) up")
    ['turn it a bit up', 'turn it up', 'make it a bit up', 'make it up']
    """
    pieces = _CHOICE.split(form)
    options = [piece.split("|") if k % 2 else [piece] for k, piece in enumerate(pieces)]
    return list(dict.fromkeys(" ".join("".join(parts).split()) for parts in product(*options)))


def _filled(form: str, values: Callable[[str], tuple[str, ...]]) -> list[str]:
    filled = []
    for variant in choices(form):
        pieces = _SLOT.split(variant)
        options = [values(piece) if k % 2 else (piece,) for k, piece in enumerate(pieces)]
        filled += ["".join(parts) for parts in product(*options)]
    return filled
