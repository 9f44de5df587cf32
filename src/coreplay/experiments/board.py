"""How far a sweep is: the state of each of its runs, and the time that is left."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coreplay.experiments.sweep import Planned
from coreplay.federated import Event

WAITING, RUNNING, FINISHED, FAILED = STATES = ("waiting", "running", "finished", "failed")


@dataclass
class Entry:
    """One run: its state, which part of it is done, and was when it began here, its last figure, and why it failed."""

    state: str = WAITING
    done: float = 0.0
    start: float = 0.0
    figure: float | None = None
    problem: str = ""
    rounds: list[int] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Bring the entry up to date with what a run told."""
        if event.kind == "begin":
            self.rounds = event.facts["rounds"]
        elif event.kind == "evaluated":
            self.figure = next(iter(event.facts.values()))
        if self.rounds:
            self.done = min((sum(self.rounds[: event.period]) + event.round) / sum(self.rounds), 1.0)
        if event.kind == "begin":
            self.start = self.done


class Board:
    """All runs of a sweep by name; `changed` is called with the run that is in a new state."""

    def __init__(
        self,
        runs: Sequence[Planned],
        changed: Callable[[Planned, Entry], None] = lambda planned, entry: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runs = tuple(runs)
        self.entries = {planned.name: Entry() for planned in runs}
        self._changed, self._clock = changed, clock
        self._began = clock()

    def set(self, planned: Planned, state: str, **facts: Any) -> None:
        """Put a run into a state."""
        entry = self.entries[planned.name]
        told = entry.state == state and state == FINISHED
        entry.state = state
        for name, value in facts.items():
            setattr(entry, name, value)
        if state == FINISHED:
            entry.done = 1.0
            entry.start = entry.start if entry.rounds else 1.0  # it was there already
        if not told:
            self._changed(planned, entry)

    def begin(self) -> None:
        """Count the time from now on."""
        self._began = self._clock()

    def counts(self) -> dict[str, int]:
        """Return how many runs are in each state."""
        found = Counter(entry.state for entry in self.entries.values())
        return {state: found[state] for state in STATES}

    def left(self) -> float | None:
        """Return the seconds that the rest takes at the pace so far; None before there is a pace.

        A first period that runs have in common is work for one of them only.
        """
        known = next((entry.rounds for entry in self.entries.values() if entry.rounds), None)
        first = known[0] / sum(known) if known else 0.0
        begun = {planned.first for planned in self.runs if self.entries[planned.name].done > 0}
        gone = rest = 0.0
        for planned in self.runs:
            entry = self.entries[planned.name]
            gone += entry.done - entry.start
            if entry.state != FAILED:
                rest += 1.0 - (entry.done or (first if planned.first in begun else 0.0))
            begun.add(planned.first)
        return (self._clock() - self._began) * rest / gone if gone > 0 else None

    def failures(self) -> dict[str, str]:
        """Return why runs failed, by name."""
        return {name: entry.problem for name, entry in self.entries.items() if entry.state == FAILED}
