"""What every benchmark needs: paired timing, and the versions it ran with."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any


def header(*packages: str) -> None:
    names = ("coreplay", "numpy", "numba", *packages)
    print(f"python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names))


def pair(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the median seconds of both, taken in turns because machines are noisy; each is called once before."""
    ours(), theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for side, call in enumerate((ours, theirs)):
            began = time.perf_counter()
            call()
            times[side].append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def line(what: str, ours: float, theirs: float, bound: str, note: str = "") -> None:
    """Print one row: both times in milliseconds, how many times faster we are, and what was asked for."""
    print(f"{what:<62} {ours * 1e3:>10.3f} ms {theirs * 1e3:>10.3f} ms {theirs / ours:>8.1f}x  (asked: {bound}) {note}")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
