"""The embedded stream: what clients of a voice assistant say over time, drawn from the grammar of `assistant.toml`.

Client m says intent i in period t with probability

    p_mt(i) ∝ a_m(i) · exp(drift · w_t(i)) · season_t(i) · born_t(i)

a_m(i) ~ Gamma(alpha), so that a client's preferences are Dirichlet(alpha); w_t is a random walk of unit steps;
season_t(i) = 1 + seasonality · cos(2π(t/4 − φ_i)) for a third of the intents; born_t(i) = 0 before the period in which
a new intent appears. With probability `habits` a client uses its own pattern and its own few values of a slot.

In the grammar, ``(a|b|)`` stands for a, b or nothing; ``{slot}`` for a value of that slot.
"""

import re
import tomllib
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coreplay.data.partition import DAY, client_names
from coreplay.data.sources import source
from coreplay.data.stream import FederatedStream
from coreplay.errors import unknown
from coreplay.seeding import generator
from coreplay.validation import Count, Fraction, TestFraction

START = 1_735_689_600  # 1 January 2025
LENGTH = 35 * DAY  # the paper's five weeks
FAVOURITES = 3  # values of a slot that a client uses by habit
SEASON = 4.0  # periods after which an intent returns
SPREAD = 0.5  # standard deviation of the logarithm of a client's number of samples
OPENINGS = ("", "", "", "please", "hey", "can you", "could you please", "i want you to", "okay", "quick", "now")
CLOSINGS = ("", "", "", "", "please", "thanks", "thank you", "right now", "for me", "will you")
Floats = NDArray[np.float64]
_CHOICE = re.compile(r"\(([^()]*)\)")
_SLOT = re.compile(r"\{(\w+)\}")


class Grammar(NamedTuple):
    """Slots with their values; intents with their patterns (literal, slot, literal, ...)."""

    slots: dict[str, tuple[str, ...]]
    intents: dict[str, tuple[tuple[str, ...], ...]]


@cache
def assistant() -> Grammar:
    """Return the embedded grammar.

    >>> grammar = assistant()
    >>> len(grammar.intents) >= 60, sum(map(len, grammar.slots.values())) > 5000
    (True, True)
    """
    return parse(files("coreplay.data").joinpath("assistant.toml").read_text(encoding="utf-8"))


def parse(text: str) -> Grammar:
    """Read a grammar in TOML: a table of slots, and a table of intents for each domain."""
    tables = tomllib.loads(text)
    raw: dict[str, list[str]] = tables["slots"]

    @cache
    def values(slot: str) -> tuple[str, ...]:
        if slot not in raw:
            raise unknown("slot", slot, raw)
        variants = (_SLOT.split(variant) for form in raw[slot] for variant in choices(form))
        options = ([values(p) if k % 2 else (p,) for k, p in enumerate(pieces)] for pieces in variants)
        return tuple(dict.fromkeys("".join(parts) for option in options for parts in product(*option)))

    intents = {
        name: tuple(tuple(_SLOT.split(variant)) for form in forms for variant in choices(form))
        for domain in tables["intents"].values()
        for name, forms in domain.items()
    }
    used = (slot for patterns in intents.values() for pattern in patterns for slot in pattern[1::2])
    return Grammar({slot: values(slot) for slot in (*raw, *used)}, intents)


def choices(form: str) -> list[str]:
    """Return the variants of a form, with single spaces.

    >>> choices("(turn|make) it( a bit|) up")
    ['turn it a bit up', 'turn it up', 'make it a bit up', 'make it up']
    """
    pieces = _CHOICE.split(form)
    options = [piece.split("|") if k % 2 else [piece] for k, piece in enumerate(pieces)]
    return list(dict.fromkeys(" ".join("".join(parts).split()) for parts in product(*options)))


@source("synthetic")
def synthetic(
    *,
    num_clients: Count = 100,
    num_periods: Count = 10,
    samples: Count = 20,
    test: TestFraction = 0.2,
    alpha: Annotated[float, Field(gt=0)] = 0.3,
    habits: Fraction = 0.5,
    drift: Annotated[float, Field(ge=0, le=1000)] = 0.35,
    new_intents: Fraction = 0.3,
    seasonality: Fraction = 0.7,
    seed: int = 0,
) -> FederatedStream:
    """Draw utterances to a voice assistant from an embedded grammar, with preferences, habits, drift and seasons.

    Parameters
    ----------
    num_clients
        The number of clients.
    num_periods
        The number of periods.
    samples
        The mean number of samples per client and period.
    test
        The share of a period that tests: its last days.
    alpha
        Dirichlet concentration of a client's intents: small is personal, infinite is the same for all.
    habits
        Probability that a client uses its own phrasing and favourite values.
    drift
        Size of the steps by which the popularity of intents walks from period to period.
    new_intents
        Share of the intents that first appear in some later period.
    seasonality
        How strongly a third of the intents comes and goes, with a season of four periods, from 0 to 1.
    seed
        The seed of everything that is drawn.
    """
    intents = list(assistant().intents)
    trend = popularity(len(intents), num_periods, drift, new_intents, seasonality, seed)
    clients, period, times, texts, labels = [], [], [], [], []
    for client in client_names(num_clients):
        rng = generator(seed, "synthetic", client)
        speaker = Speaker(alpha, habits, rng)
        size = samples * np.exp(SPREAD * rng.normal() - SPREAD**2 / 2)
        for t in range(num_periods):
            n = max(1, int(rng.poisson(size)))
            chances = speaker.preferences * trend[t]
            said = [intents[k] for k in rng.choice(len(intents), size=n, p=chances / chances.sum())]
            texts += speaker.say(said, rng)
            clients += [client] * n
            period += [t] * n
            times.append(START + t * LENGTH + np.sort(rng.integers(0, LENGTH, n)))
            labels += said
    when = np.concatenate(times)
    tests = (when - START) % LENGTH >= LENGTH * (1 - test)
    return FederatedStream(
        clients, period, tests, texts, labels, when, periods=num_periods, label_names=sorted(intents)
    )


def popularity(intents: int, periods: int, drift: float, new_intents: float, seasonality: float, seed: int) -> Floats:
    """Return how popular each intent is in each period, for all clients alike: (periods, intents), never all zero."""
    rng = generator(seed, "synthetic popularity")
    walk = np.cumsum(rng.normal(size=(periods, intents)), axis=0)
    seasonal = rng.permutation(intents) < intents // 3
    phases = rng.random(intents)
    born = np.zeros(intents, dtype=np.int64)
    late = rng.permutation(intents)[: round(new_intents * intents * (periods > 1) * (1 - 1e-9))]
    born[late] = rng.integers(1, max(2, periods), size=len(late))
    t = np.arange(periods)[:, None]
    waves = 1 + seasonality * seasonal * np.cos(2 * np.pi * (t / SEASON - phases))
    steps = drift * walk
    steps -= np.maximum(steps.max(axis=1, keepdims=True) - 500, 0)  # only shares count: no overflow
    weights = np.exp(steps) * waves * (t >= born)
    weights[:, int(rng.integers(intents))] += 1e-9  # a period in which nothing is said can't be
    return np.asarray(weights)


class Speaker:
    """One client: what it likes to ask for, and how it says it."""

    def __init__(self, alpha: float, habits: float, rng: np.random.Generator) -> None:
        self.grammar, self.habits = assistant(), habits
        count = len(self.grammar.intents)
        self.preferences = rng.gamma(alpha, size=count) + 1e-12 if np.isfinite(alpha) else np.ones(count)
        self.opening, self.closing = OPENINGS[rng.integers(len(OPENINGS))], CLOSINGS[rng.integers(len(CLOSINGS))]
        self.key = int(rng.integers(2**40))

    def say(self, intents: list[str], rng: np.random.Generator) -> list[str]:
        """Return one utterance for each intent."""
        draws = rng.random((len(intents), 20)).tolist()
        return [self._utterance(intent, row) for intent, row in zip(intents, draws, strict=True)]

    def _utterance(self, intent: str, draws: list[float]) -> str:
        """Fill a pattern; `draws` are numbers in [0, 1): four for the frame, then two for each slot."""
        patterns = self.grammar.intents[intent]
        if draws[0] < self.habits:
            pattern = patterns[(self.key + len(intent) * 7919) % len(patterns)]
            opening, closing = self.opening, self.closing
        else:
            pattern = patterns[int(draws[1] * len(patterns))]
            opening, closing = OPENINGS[int(draws[2] * len(OPENINGS))], CLOSINGS[int(draws[3] * len(CLOSINGS))]
        pieces = [opening, " ", *pattern, " ", closing]
        for k in range(1, len(pattern), 2):
            values = self.grammar.slots[pattern[k]]
            habit, which = draws[2 * k + 2], draws[2 * k + 3]
            if habit < self.habits:
                favourite = int(which * FAVOURITES)
                pieces[k + 2] = values[(self.key // 97 + favourite * 104_729 + len(pattern[k]) * 31) % len(values)]
            else:
                pieces[k + 2] = values[int(which * len(values))]
        return " ".join("".join(pieces).split())
