"""What benchmarks share: paired timing, the versions they ran with, and a round of training without a run."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from coreplay.runtime.aggregation import Update, Weights, sum_over_clients
from coreplay.runtime.engine import Engine
from coreplay.runtime.requests import Train


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


def train_round(engine: Engine, round: int, clients: Sequence[str], values: np.ndarray) -> Update:
    """Let clients train in a round of the first period, as the trainer of a run does, and return the sums."""
    counts = dict(zip(engine.registry.clients, engine.registry.counts("train")[:, 0].tolist(), strict=True))
    request = Train(run=engine.run_id, period=0, round=round, arrays={"model": values})
    names, groups = {"change": values.size}, 8  # as many groups as a run has by default
    return sum_over_clients(
        engine, request, clients, counts.__getitem__, names, groups, Weights(0.0), lambda _: None, "training"
    )
