"""How close do selectors come to the optimum? The paper's section 5.1: N of n random gradients, many times.

Each repeat draws gradients from a mixture, finds the optimum by branch and bound and lets every selector choose. The
result is the ratio of its objective (equation 3) to the optimum. Each repeat has its own seed, so results do not depend
on the number of workers.

The mixture is the random Gaussian mixture of the paper's appendix C.1. "literal": centres and samples are each shifted
and scaled so that every coordinate has mean 0 and standard deviation 1, over the centres and over the samples. (A
single centre has no deviation and becomes 0.) The sum of all samples is then 0, so that x ∝ ‖g_i‖ solves the convex
relaxation with value 0 and does not tell the samples apart. "uncentred": the same draws without either normalisation.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from os import cpu_count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from coreplay.errors import InputError, unknown
from coreplay.seeding import generator
from coreplay.selection import check_method, objective, select, selectors
from coreplay.selection.pool import make_pool
from coreplay.validation import whole_number

Floats = NDArray[np.float64]

MIXTURES = ("literal", "uncentred")
# on a pool of new samples only, the first two equal naive_uniform and the last equals polished
CHUNK = 100  # repeats per task of a worker process


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
        """Validate all parameters."""
        if self.mixture not in MIXTURES:
            raise unknown("mixture", self.mixture, MIXTURES)
        for name, least in (("budget", 1), ("repeats", 1), ("seed", 0), ("dimension", 1)):
            whole_number(getattr(self, name), name, least=least)
        if not self.sizes:
            raise InputError("n is missing: pass at least one pool size")
        for n in self.sizes:
            if whole_number(n, "n", least=2) <= self.budget:
                raise InputError(f"n must be larger than the budget: got {n} for a budget of {self.budget}")
        chosen = self.methods or tuple(m for m in selectors() if m != "exact" and _refusal(m) is None)
        for method in chosen:
            check_method(method, {})
            if refusal := _refusal(method):
                raise InputError(f"this experiment draws gradients and nothing else: {refusal}")
        object.__setattr__(self, "methods", chosen)
        object.__setattr__(self, "sizes", tuple(dict.fromkeys(self.sizes)))


def _refusal(method: str) -> str | None:
    """Return why a selector can't choose by gradients alone; None if it can."""
    try:
        select(gram=np.eye(3), budget=1, method=method)
    except InputError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Row:
    """One method at one pool size: its ratios to the optimum, and its time per selection from a given gram."""

    n: int
    method: str
    mean: float
    median: float
    p95: float
    optimal: float
    milliseconds: float


@dataclass(frozen=True)
class Result:
    """The ratios by pool size (methods x repeats), their summary, the duration and the package versions."""

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


def draw(rng: np.random.Generator, n: int, mixture: str, *, dimension: int = 300) -> Floats:
    """Draw the gradients of one client: n rows of `dimension` numbers.

    >>> rows = draw(np.random.default_rng(0), 4, "literal", dimension=3)
    >>> rows.shape, bool(abs(rows.mean(axis=0)).max() < 1e-12)
    ((4, 3), True)
    """
    normalise = _normalise if mixture == "literal" else np.asarray
    centres = normalise(rng.normal(size=(rng.poisson(4) + 1, dimension)))
    weights = rng.dirichlet(np.ones(len(centres)))
    return normalise(centres[rng.choice(len(centres), size=n, p=weights)] + rng.normal(size=(n, dimension)))


def _normalise(rows: Floats) -> Floats:
    """Give each column mean 0 and standard deviation 1; a constant column becomes 0."""
    centred: Floats = rows - rows.mean(axis=0)
    deviation = centred.std(axis=0)
    centred /= np.where(deviation > 0, deviation, 1)
    return centred


def run(
    config: NearOptimality,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Run the experiment; `progress(done, total)` counts repeats."""
    from coreplay.runtime.run_dir import versions  # not in every worker process: it imports torch

    workers = whole_number(cpu_count() if workers is None else workers, "workers", least=1)
    began = time.perf_counter()
    chunks = [
        (n, range(first, min(first + CHUNK, config.repeats)))
        for n in config.sizes
        for first in range(0, config.repeats, CHUNK)
    ]
    repeats: dict[int, list[tuple[Floats, Floats]]] = {n: [] for n in config.sizes}
    total = config.repeats * len(config.sizes)
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=threadpool_limits, initargs=(1,)) as pool:
        for (n, _), found in zip(
            chunks, pool.map(partial(_run_chunk, config), *zip(*chunks, strict=True)), strict=True
        ):
            repeats[n] += found
            progress(sum(map(len, repeats.values())), total)
    ratios, rows = {}, []
    for n in config.sizes:
        ratios[n], times = (np.stack(part, axis=1) for part in zip(*repeats[n], strict=True))
        rows += [_row(n, method, ratios[n][k], times[k]) for k, method in enumerate(config.methods)]
        rows.append(_row(n, "exact", np.ones(config.repeats), times[-1]))
    return Result(config, ratios, rows, time.perf_counter() - began, versions())


def _run_chunk(config: NearOptimality, n: int, repeats: range) -> list[tuple[Floats, Floats]]:
    """Return the ratios and times of some repeats."""
    one_repeat(config, n, repeats[0])  # compiles the selectors, so that compilation is not timed
    return [one_repeat(config, n, repeat) for repeat in repeats]


def one_repeat(config: NearOptimality, n: int, repeat: int) -> tuple[Floats, Floats]:
    """Return the ratios of all methods in one repeat, and their times in seconds (last: of the exact optimum)."""
    gradients = draw(generator(config.seed, "mixture", n, repeat), n, config.mixture, dimension=config.dimension)
    gram = make_pool(gradients).gram
    values, seconds = [], []
    for method in (*config.methods, "exact"):
        rng = generator(config.seed, "select", method, n, repeat)
        began = time.perf_counter()
        kept = select(gram=gram, budget=config.budget, method=method, seed=rng)
        seconds.append(time.perf_counter() - began)
        values.append(objective(gram=gram, kept=kept))
    return np.array(values[:-1]) / values[-1], np.array(seconds)


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
