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

from coreplay.report.text import clean, duration, sweep_table, which_test_sets

if TYPE_CHECKING:
    from coreplay.experiments.scheduler import SweepStatus
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

    clock: Callable[[], float] = time.monotonic
    rounds: list[int] = field(default_factory=list)  # of each period
    period: int = 0
    round: int = 0
    clients: str = ""
    loss: float | None = None  # of the last round of this period
    scores: str = ""
    evaluated: int = 0  # the period after which the scores were measured
    doing: str = "preparing the data and the model"  # before the run begins
    steps: float = 0.0  # rounds trained, with the part of the current one
    began: float = 0.0
    first: float = 0.0  # steps that were done when the run was resumed

    def take(self, event: "Event") -> None:
        """Update the status."""
        facts = event.facts
        if event.period != self.period:
            self.loss = None
        self.period, self.round, self.clients = event.period, event.round, ""
        if event.kind == "begin":
            self.rounds, self.began = facts["rounds"], self.clock()
            self.first = sum(self.rounds[: event.period]) + event.round
        self.steps = sum(self.rounds[: event.period]) + event.round
        if event.kind == "starting":
            self.doing = f"starting {facts['workers']} worker process{'' if facts['workers'] == 1 else 'es'}"
        elif event.kind == "client" and facts["of"]:
            done = min(facts["done"], facts["of"])
            self.clients = f"client {done}/{facts['of']}"
            self.steps += done / facts["of"] if event.round < self.rounds_of_period else 0
        elif event.kind == "round":
            self.loss = facts["loss"]
            self.steps += 1
        elif event.kind == "evaluated":
            self.scores = ", ".join(f"{name} {value:.4g}" for name, value in facts.items() if name != "missing")
            self.evaluated = event.period

    @property
    def rounds_of_period(self) -> int:
        """The rounds of the current period."""
        return self.rounds[self.period] if self.period < len(self.rounds) else 0

    def time_left(self) -> str:
        """Return how long the rest takes at the pace so far; empty before there is a pace, and at the end."""
        gone, rest = self.steps - self.first, sum(self.rounds) - self.steps
        return f"about {duration((self.clock() - self.began) * rest / gone)} left" if gone > 0 and rest > 0 else ""

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
        training = self.round < self.rounds_of_period
        parts = [
            f"period {min(self.period + 1, len(self.rounds))}/{len(self.rounds)}",
            f"round {self.round + 1}/{self.rounds_of_period}" if training else "evaluating and selecting",
            self.clients,
            "" if self.loss is None else f"loss {self.loss:.4g}",
            self.scores
            + (f" after period {self.evaluated + 1}" if self.scores and self.evaluated != self.period else ""),
        ]
        return ", ".join(filter(None, parts))


@contextmanager
def following() -> Iterator["Observer"]:
    """Give an observer that shows the events of a run on standard error."""
    if sys.stderr.isatty():
        with _live() as observer:
            yield observer
    else:
        yield _plain()


def _plain() -> "Observer":
    status = Status()

    def observe(event: "Event") -> None:
        status.take(event)
        facts, period = event.facts, f"period {event.period + 1}/{len(status.rounds)}"
        text = ""
        if event.kind == "starting":
            text = status.line()
        elif event.kind == "begin" and (event.period or event.round):
            text = f"resuming at period {event.period + 1}, round {event.round + 1}"
        elif event.kind == "round":
            text = ", ".join(filter(None, [status.line(), status.time_left()]))
        elif event.kind == "evaluated":
            text = f"{period} is trained: {status.scores} on {which_test_sets(facts.get('missing', ()))}"
        elif event.kind == "selected":
            text = f"{period}: {facts['clients']} clients selected, {facts['kept']} samples kept"
        elif event.kind == "warning":
            text = f"warning: {facts['text']}"
        if text:
            echo(text, err=True)

    return observe


@contextmanager
def _live() -> Iterator["Observer"]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    status = Status()
    console = Console(stderr=True)
    bar = Progress(BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    task = bar.add_task("", total=None, left="")
    with Live(Group(bar, Text(status.line())), console=console, refresh_per_second=8, transient=True) as live:

        def observe(event: "Event") -> None:
            status.take(event)
            if event.kind == "warning":
                console.print(Text(printable(f"warning: {event.facts['text']}"), style="yellow"))
            bar.update(task, total=sum(status.rounds) or None, completed=status.steps, left=status.time_left())
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
def following_sweep(status: "SweepStatus") -> Iterator[Callable[[], None]]:
    """Give a function that shows on standard error where a sweep is; call it several times per second."""
    if not sys.stderr.isatty():
        show = _sweep_lines(status)
        try:
            yield show
        finally:
            show()  # the runs that have ended since the last call
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.markdown import Markdown
    from rich.text import Text

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda: live.update(Group(Markdown(printable(sweep_table(status))), Text(_sweep_line(status))))


def _sweep_lines(status: "SweepStatus") -> Callable[[], None]:
    """Return a function that prints every run once it has ended, and the whole sweep every 30 seconds."""
    said: set[str] = set()
    last = time.monotonic()

    def show() -> None:
        nonlocal last
        for name, run in status.by_name.items():
            if name not in said and run.state in ("finished", "failed"):
                said.add(name)
                echo(f"{name}: {run.problem or (run.state if run.score is None else f'{run.score:.4g}')}", err=True)
        if time.monotonic() - last > 30:
            last = time.monotonic()
            echo(_sweep_line(status), err=True)

    return show


def _sweep_line(status: "SweepStatus") -> str:
    counts = ", ".join(f"{count} {state}" for state, count in status.counts().items() if count)
    left = status.seconds_left()
    return counts + (f"; about {duration(left)} left" if left is not None else "")
