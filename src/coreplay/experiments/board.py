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
    """One run: its state, which part of it is done, its last figure, and why it failed."""

    state: str = WAITING
    done: float = 0.0
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
        self._began, self._before = clock(), 0.0

    def set(self, planned: Planned, state: str, **facts: Any) -> None:
        """Put a run into a state."""
        entry = self.entries[planned.name]
        entry.state = state
        for name, value in facts.items():
            setattr(entry, name, value)
        if state == FINISHED:
            entry.done = 1.0
        self._changed(planned, entry)

    def begin(self) -> None:
        """Count the time from now on."""
        self._began, self._before = self._clock(), self.done

    @property
    def done(self) -> float:
        """How many runs are done, with parts of those that go on."""
        return sum(entry.done for entry in self.entries.values())

    def counts(self) -> dict[str, int]:
        """Return how many runs are in each state."""
        found = Counter(entry.state for entry in self.entries.values())
        return {state: found[state] for state in STATES}

    def left(self) -> float | None:
        """Return the seconds that the rest takes at the pace so far; None before there is a pace."""
        gone = self.done - self._before
        if gone <= 0:
            return None
        failed = sum(1 - entry.done for entry in self.entries.values() if entry.state == FAILED)
        return (self._clock() - self._began) * (len(self.runs) - self.done - failed) / gone

    def failures(self) -> dict[str, str]:
        """Return why runs failed, by name."""
        return {name: entry.problem for name, entry in self.entries.items() if entry.state == FAILED}
