"""What a run reports while it goes on; displays, logs and trackers are functions of these."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something happened in a run.

    `kind` is one of: starting (facts: the number of worker processes; before a run begins), begin (the rounds of each
    period), client (done, of), round (loss), evaluated (the metrics after a period), coordination (round, objective),
    selected, warning (text), end (the summary).
    """

    kind: str
    period: int
    round: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """An engine has the replies of some clients; `client` is the last of them."""

    client: str
    clients: int = 1


@dataclass(frozen=True)
class Problem:
    """Something went wrong that does not stop the run; `trace` is for the log of a failing client."""

    text: str
    trace: str = ""


Observer = Callable[[Event], None]
Observe = Callable[[Answered | Problem], None]  # what an engine reports to the run
