"""What a run tells while it goes on; displays, logs and trackers are functions of these."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something happened.

    `kind` is one of: starting (how many worker processes there are, before a run begins), begin (the
    rounds of each period), client (done, of), round (loss), evaluated (the figures after a period),
    coordination (round, objective), selected, warning (text), end (the summary).
    """

    kind: str
    period: int
    round: int
    facts: dict[str, Any]


Observer = Callable[[Event], None]
