"""What a person sees on the terminal: results as tables, and the progress of runs, sweeps and other long work.

On a terminal progress is a bar or a table that changes; elsewhere it is one line per round, period or run. It goes to
standard error, because standard output is for results.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from coreplay.report.text import clean, duration, which_test_sets

if TYPE_CHECKING:
    from coreplay.experiments.scheduler import RunStatus, SweepStatus
    from coreplay.experiments.sweep import Planned
    from coreplay.runtime import Event, Observer


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text without control characters: names, reasons and errors may come from somebody else's files.

    Everything that the command line prints goes through here, or through `printable` where rich prints it.
    """
    typer.echo(printable(text), err=err, nl=nl)


def printable(text: object) -> str:
    r"""Return a text whose lines hold no control characters.

    >>> printable("first\x1b[2J\nsecond")
    'first?[2J\nsecond'
    """
    return "\n".join(map(clean, str(text).split("\n")))


def show_markdown(text: str) -> None:
    r"""Show Markdown with tables drawn on a terminal, and as text in a pipe, without escapes other than ``\|``."""
    if not sys.stdout.isatty():
        echo(re.sub(r"\\([\\<`*_\[\]])", r"\1", text))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(printable(text)))


@dataclass
class Status:
    """Where a run is, from its events."""

    title: str = ""
    clock: Callable[[], float] = time.monotonic
    rounds: list[int] = field(default_factory=list)  # of each period
    period: int = 0
    round: int = 0
    clients: str = ""
    loss: float | None = None  # of the last round of this period
    figures: dict[str, float] = field(default_factory=dict)
    measured: int = 0  # the period after which the figures were measured
    doing: str = "preparing the data and the model"  # before the run begins
    steps: float = 0.0  # rounds trained, with the part of the current one
    began: float = 0.0
    first: float = 0.0  # steps that were done when the run was resumed

    def take(self, event: "Event") -> None:
        """Update the status."""
        facts = event.facts
        if event.kind == "starting":
            self.doing = f"starting {facts['workers']} worker process{'' if facts['workers'] == 1 else 'es'}"
        if event.period != self.period:
            self.loss = None
        self.period, self.round, self.clients = event.period, event.round, ""
        if event.kind == "begin":
            self.rounds, self.began = facts["rounds"], self.clock()
        self.steps = sum(self.rounds[: event.period]) + event.round
        if event.kind == "begin":
            self.first = self.steps
        elif event.kind == "client" and facts["of"]:
            done = min(facts["done"], facts["of"])
            self.clients = f"client {done}/{facts['of']}"
            self.steps += done / facts["of"] if event.round < self._rounds else 0
        elif event.kind == "round":
            self.loss = facts["loss"]
            self.steps += 1
        elif event.kind == "evaluated":
            self.figures = {name: value for name, value in facts.items() if name != "missing"}
            self.measured = event.period

    @property
    def total(self) -> int:
        """All rounds of the run."""
        return sum(self.rounds)

    @property
    def periods(self) -> int:
        """All periods of the run."""
        return len(self.rounds)

    @property
    def _rounds(self) -> int:
        """The rounds of the current period."""
        return self.rounds[self.period] if self.period < self.periods else 0

    def seconds_left(self) -> float | None:
        """Return the seconds that the rest takes at the pace so far; None before there is a pace."""
        gone = self.steps - self.first
        if gone <= 0:
            return None
        return (self.clock() - self.began) * (self.total - self.steps) / gone

    def line(self) -> str:
        """Return the status in one line.

        >>> from coreplay.runtime.events import Event
        >>> status = Status()
        >>> status.take(Event("begin", 0, 0, {"rounds": [4, 4]}))
        >>> status.take(Event("client", 0, 1, {"done": 3, "of": 6}))
        >>> status.line()
        'period 1/2, round 2/4, client 3/6'
        """
        if not self.rounds:
            return self.doing
        parts = [f"period {min(self.period + 1, self.periods)}/{self.periods}"]
        parts.append(
            f"round {self.round + 1}/{self._rounds}" if self.round < self._rounds else "evaluating and selecting"
        )
        parts += [self.clients] if self.clients else []
        parts += [] if self.loss is None else [f"loss {self.loss:.4g}"]
        when = "" if self.measured == self.period else f" after period {self.measured + 1}"
        return ", ".join(parts + [f"{name} {value:.4g}{when}" for name, value in self.figures.items()])


@contextmanager
def following(title: str = "") -> Iterator["Observer"]:
    """Give an observer that shows the events of a run on standard error."""
    if sys.stderr.isatty():
        with _live(title) as observer:
            yield observer
    else:
        yield _plain(title)


def _plain(title: str) -> "Observer":
    status = Status(title)

    def observe(event: "Event") -> None:
        status.take(event)
        facts = event.facts
        text = None
        if event.kind == "starting":
            text = status.line()
        elif event.kind == "begin" and (event.period or event.round):
            text = f"resuming at period {event.period + 1}, round {event.round + 1}"
        elif event.kind == "round":
            left = status.seconds_left()
            text = status.line() + (f", about {duration(left)} left" if left else "")
        elif event.kind == "evaluated":
            figures = ", ".join(f"{name} {value:.4g}" for name, value in facts.items() if name != "missing")
            where = which_test_sets(facts.get("missing", ()))
            text = f"period {event.period + 1}/{status.periods} is trained: {figures} on {where}"
        elif event.kind == "selected":
            kept = f"{facts['clients']} clients selected, {facts['kept']} samples kept"
            text = f"period {event.period + 1}/{status.periods}: {kept}"
        elif event.kind == "warning":
            text = f"warning: {facts['text']}"
        if text is not None:
            echo(f"{title}: {text}" if title else text, err=True)

    return observe


@contextmanager
def _live(title: str) -> Iterator["Observer"]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    status = Status(title)
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}")
    )
    task = bar.add_task(printable(title), total=None, left="")
    with Live(Group(bar, Text(status.line())), console=console, refresh_per_second=8, transient=True) as live:

        def observe(event: "Event") -> None:
            status.take(event)
            if event.kind == "warning":
                console.print(Text(printable(f"warning: {event.facts['text']}"), style="yellow"))
            left = status.seconds_left()
            text = f"about {duration(left)} left" if left is not None else ""
            bar.update(task, total=status.total or None, completed=status.steps, left=text)
            live.update(Group(bar, Text(printable(status.line()), overflow="ellipsis", no_wrap=True)))

        yield observe


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while work goes on, and give a function (done, total) that moves it; silent off the terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(title), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def following_sweep(
    table: Callable[["SweepStatus"], str],
) -> Iterator[tuple[Callable[["Planned", "RunStatus"], None], Callable[["SweepStatus"], None]]]:
    """Give two functions: one for a run in a new state, one to show the whole sweep."""
    if not sys.stderr.isatty():
        yield _sweep_lines()
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.markdown import Markdown
    from rich.text import Text

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield (
            lambda planned, entry: None,
            lambda status: live.update(Group(Markdown(printable(table(status))), Text(_sweep_line(status)))),
        )


def _sweep_lines() -> tuple[Callable[["Planned", "RunStatus"], None], Callable[["SweepStatus"], None]]:
    last = time.monotonic()

    def changed(planned: "Planned", entry: "RunStatus") -> None:
        if entry.state in ("finished", "failed"):
            what = f"{entry.score:.4g}" if entry.score is not None else entry.state
            echo(f"{planned.name}: {entry.problem or what}", err=True)

    def show(status: "SweepStatus") -> None:
        nonlocal last
        if time.monotonic() - last > 30:
            last = time.monotonic()
            echo(_sweep_line(status), err=True)

    return changed, show


def _sweep_line(status: "SweepStatus") -> str:
    counts = ", ".join(f"{count} {state}" for state, count in status.counts().items() if count)
    left = status.seconds_left()
    return counts + (f"; about {duration(left)} left" if left is not None else "")
