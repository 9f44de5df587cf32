"""How near to the optimum do selectors come? The paper's section 5.1: N of n random gradients, many times.

Each repeat draws a mixture, finds the optimum by branch and bound, and lets every selector choose; the result is the
ratio of its objective (equation 3) to the optimum. Repeats are independent and seeded one by one, so it does not depend
on the number of workers; they are stored in chunks as they are done, so that a run can be resumed.
"""

import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from coreplay.errors import InputError, unknown
from coreplay.experiments.mixture import MIXTURES, draw
from coreplay.files import read_arrays, read_json, replacing, write_json
from coreplay.seeding import generator
from coreplay.selection import check_method, choose, objective, selectors
from coreplay.selection.pool import make_pool, whole_number

Floats = NDArray[np.float64]

# on one pool of new samples the first two are naive uniform and the last is polished
NEEDS_HISTORY = ("approximate_uniform", "fixed_proportion", "balanced")
CHUNK = 100


@dataclass(frozen=True)
class NearOptimality:
    """The parameters of the experiment; the defaults are the paper's."""

    sizes: tuple[int, ...] = (10, 30, 50)
    budget: int = 5
    repeats: int = 5000
    mixture: str = "literal"
    seed: int = 0
    dimension: int = 300
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check everything before any work starts."""
        if self.mixture not in MIXTURES:
            raise unknown("mixture", self.mixture, MIXTURES)
        for name, least in (("budget", 1), ("repeats", 1), ("seed", 0), ("dimension", 1)):
            whole_number(getattr(self, name), name, least=least)
        if not self.sizes:
            raise InputError("n is missing: pass at least one pool size")
        for n in self.sizes:
            if whole_number(n, "n", least=2) <= self.budget:
                raise InputError(f"n must be larger than the budget: got {n} for a budget of {self.budget}")
        chosen = self.methods or tuple(m for m in selectors() if m != "exact" and m not in NEEDS_HISTORY)
        for method in chosen:
            check_method(method, {})
            if method in NEEDS_HISTORY:
                raise InputError(f"method {method!r} needs a buffer from earlier periods: leave it out here")
        object.__setattr__(self, "methods", tuple(chosen))
        object.__setattr__(self, "sizes", tuple(dict.fromkeys(self.sizes)))


@dataclass(frozen=True)
class Row:
    """One method at one pool size: its ratios to the optimum, and its time for one selection from a gram."""

    n: int
    method: str
    mean: float
    median: float
    p95: float
    optimal: float
    milliseconds: float


@dataclass(frozen=True)
class Result:
    """All ratios by pool size (methods x repeats), the summary, and how the result came about."""

    config: NearOptimality
    ratios: dict[int, Floats]
    rows: list[Row]
    seconds: float
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return config, summary and versions as plain data."""
        return {
            "config": asdict(self.config),
            "rows": [asdict(row) for row in self.rows],
            "seconds": round(self.seconds, 1),
            "versions": self.versions,
        }


def run(
    config: NearOptimality,
    folder: Path | str,
    *,
    resume: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Carry out the experiment in `folder`, which then holds its chunks; `progress(done, total)` counts repeats."""
    folder = Path(folder)
    workers = whole_number(cpu_count() if workers is None else workers, "workers", least=1)
    _claim(folder, config, resume)
    began = time.perf_counter()
    total = config.repeats * len(config.sizes)
    todo, done = [], 0
    for n, first, count in _chunks(config):
        if _load(config, folder, n, first, count) is None:
            todo.append((n, first, count))
        else:
            done += count
    progress(done, total)
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=threadpool_limits, initargs=(1,)) as pool:
        futures = {pool.submit(_run_chunk, config, folder, *chunk): chunk for chunk in todo}
        try:
            for future in as_completed(futures):
                future.result()
                done += futures[future][2]
                progress(done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return _collect(config, folder, time.perf_counter() - began)


def one_repeat(config: NearOptimality, n: int, repeat: int) -> tuple[Floats, Floats]:
    """Return the ratios of all methods in one repeat, and their times in seconds (last: of the exact optimum)."""
    gradients = draw(generator(config.seed, "mixture", n, repeat), n, config.mixture, dimension=config.dimension)
    gram = make_pool(gradients).gram
    values, seconds = [], []
    for method in (*config.methods, "exact"):
        rng = generator(config.seed, "select", method, n, repeat)
        began = time.perf_counter()
        kept = choose(gram=gram, budget=config.budget, method=method, seed=rng).indices
        seconds.append(time.perf_counter() - began)
        values.append(objective(gram=gram, kept=kept))
    return np.array(values[:-1]) / values[-1], np.array(seconds)


def _chunks(config: NearOptimality) -> Iterator[tuple[int, int, int]]:
    for n in config.sizes:
        for first in range(0, config.repeats, CHUNK):
            yield n, first, min(CHUNK, config.repeats - first)


def _path(folder: Path, n: int, first: int) -> Path:
    return folder / "chunks" / f"n{n}-{first:06d}.npz"


def _run_chunk(config: NearOptimality, folder: Path, n: int, first: int, count: int) -> None:
    one_repeat(config, n, first)  # compiles what is not compiled yet, so that no time is charged for it
    results = [one_repeat(config, n, repeat) for repeat in range(first, first + count)]
    with replacing(_path(folder, n, first)) as temporary:
        np.savez(temporary, ratios=np.array([r for r, _ in results]), seconds=np.array([s for _, s in results]))


def _load(config: NearOptimality, folder: Path, n: int, first: int, count: int) -> tuple[Floats, Floats] | None:
    """Return the ratios and times of a finished chunk, or None if it is missing or damaged."""
    try:
        chunk = read_arrays(_path(folder, n, first))
        ratios, seconds = chunk["ratios"], chunk["seconds"]
    except (InputError, KeyError):
        return None
    shape = (count, len(config.methods))
    return (ratios, seconds) if ratios.shape == shape and seconds.shape == (count, shape[1] + 1) else None


def _claim(folder: Path, config: NearOptimality, resume: bool) -> None:
    """Make the folder ours, or go on with an earlier run of the same experiment."""
    stamp, plain = (
        folder / "config.json",
        asdict(config) | {"sizes": list(config.sizes), "methods": list(config.methods)},
    )
    if resume and not stamp.exists():
        raise InputError(f"--resume: there is no run in {str(folder)!r}: leave --resume out, or correct --output")
    if stamp.exists():
        if not resume:
            raise InputError(f"output {str(folder)!r} holds a run already: pass --resume to go on, or another --output")
        earlier = read_json(stamp)
        different = sorted(k for k in plain if earlier.get(k) != plain[k])
        if different:
            name = different[0]
            raise InputError(
                f"--resume: the run in {str(folder)!r} has {name} = {earlier.get(name)!r}, not {plain[name]!r}: "
                "repeat its options, or choose another --output"
            )
    write_json(stamp, plain)


def _collect(config: NearOptimality, folder: Path, seconds: float) -> Result:
    ratios: dict[int, Floats] = {}
    rows: list[Row] = []
    for n in config.sizes:
        loaded = [_load(config, folder, n, first, count) for m, first, count in _chunks(config) if m == n]
        chunks = [chunk for chunk in loaded if chunk is not None]
        if len(chunks) != len(loaded):
            raise RuntimeError(f"a chunk in {folder} was lost while the run was going on: run again with --resume")
        ratios[n] = np.concatenate([r for r, _ in chunks]).T
        times = np.concatenate([s for _, s in chunks]).T
        for k, method in enumerate(config.methods):
            rows.append(_row(n, method, ratios[n][k], times[k]))
        rows.append(_row(n, "exact", np.ones(config.repeats), times[-1]))
    names = ("numpy", "numba", "scipy")
    versions = {"python": platform.python_version(), "coreplay": version("coreplay")} | {m: version(m) for m in names}
    return Result(config, ratios, rows, seconds, versions)


def _row(n: int, method: str, ratios: Floats, times: Floats) -> Row:
    return Row(
        n,
        method,
        mean=float(ratios.mean()),
        median=float(np.median(ratios)),
        p95=float(np.quantile(ratios, 0.95)),
        optimal=float((ratios <= 1 + 1e-9).mean()),
        milliseconds=float(np.median(times)) * 1e3,
    )
