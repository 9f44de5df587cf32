"""How much do clients gain by selecting jointly, and in how many rounds? A study on generated, heterogeneous clients.

All clients share the cluster centres, and each client has its own weights:

    centres c_1 … c_C ~ N(0, I_d);    client m: weights ~ Dirichlet(β, …, β);    sample = c_k + N(0, I_d), k ~ weights.

With C = 20 and β = 0.2 most of a client's samples come from three or four centres. The optimum of the joint relaxation
(equation 6) is bounded by Wolfe's algorithm for the smallest vector of a polytope, on the sum of all clients' capped
simplices: for any y and the corner V with the smallest product ⟨y, V⟩, ‖Σ Gx‖ >= ⟨y, V⟩ / ‖y‖.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.coordination import coordinate, coordination_methods
from coreplay.coordination.methods.corrective import least_mixture
from coreplay.errors import InputError, unknown
from coreplay.seeding import generator
from coreplay.selection.pool import unit_rows
from coreplay.validation import whole_number

Floats = NDArray[np.float64]
MAX_STEPS = 3000  # of Wolfe's algorithm


@dataclass(frozen=True)
class CoordinationStudy:
    """The parameters of the study: the clients, their budget, and the numbers of rounds per method."""

    clients: int = 1000
    pool: int = 50
    budget: int = 5
    dimension: int = 300
    centres: int = 20
    concentration: float = 0.2
    rounds: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    methods: tuple[str, ...] = ("alternating", "corrective")
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate all parameters."""
        for name in ("clients", "pool", "budget", "dimension", "centres"):
            whole_number(getattr(self, name), name, least=1)
        if self.budget >= self.pool:
            raise InputError(
                f"budget must be less than the pool: got {self.budget} for a pool of {self.pool}, "
                "so that everything is kept and nothing is left to coordinate"
            )
        whole_number(self.seed, "seed", least=0)
        if not 0 < self.concentration < np.inf:
            raise InputError(f"concentration must be above 0: got {self.concentration}")
        if not self.rounds or not self.methods:
            raise InputError("rounds and methods must have at least one entry each")
        for rounds in self.rounds:
            whole_number(rounds, "rounds", least=0)
        for method in self.methods:
            if method not in coordination_methods():
                raise unknown("coordination method", method, coordination_methods())


@dataclass(frozen=True)
class Outcome:
    """One method after some rounds; `ratio` is that of the objective to the lower bound, None if the bound is 0."""

    method: str
    rounds: int
    objective: float
    ratio: float | None
    bytes_up: int
    bytes_down: int
    seconds: float


@dataclass(frozen=True)
class StudyResult:
    """All outcomes, the proven lower bound, the best relaxed value found, and the package versions."""

    config: CoordinationStudy
    lower: float
    upper: float
    outcomes: list[Outcome]
    selections: dict[str, list[int]]  # of clients that were given, by the outcome with the smallest objective
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self)


def draw_clients(config: CoordinationStudy) -> list[NDArray[np.float32]]:
    """Draw the clients' unit gradients, one (pool, dimension) array each.

    >>> [c.shape for c in draw_clients(CoordinationStudy(clients=2, pool=6, dimension=4))]
    [(6, 4), (6, 4)]
    """
    rng = generator(config.seed, "coordination clients")
    centres = rng.normal(size=(config.centres, config.dimension))
    out = []
    for _ in range(config.clients):
        weights = rng.dirichlet(np.full(config.centres, config.concentration))
        chosen = rng.choice(config.centres, size=config.pool, p=weights)
        samples = centres[chosen] + rng.normal(size=(config.pool, config.dimension))
        out.append(unit_rows(samples, "samples").astype(np.float32))
    return out


def joint_bound(clients: list[NDArray[np.float32]], budget: int, *, tolerance: float = 1e-4) -> tuple[float, float]:
    """Return a proven lower bound of the joint relaxation and a feasible value, relatively within `tolerance`.

    >>> lower, upper = joint_bound([np.float32([[1, 0], [0, 1]]), np.float32([[1, 0], [-1, 0]])], 1)
    >>> round(lower, 9), round(upper, 9)
    (0.0, 0.0)
    """
    stacked = np.concatenate(clients).astype(np.float64)
    ends = np.cumsum([len(client) for client in clients])[:-1]
    corners = [_corner(stacked, ends, np.zeros(stacked.shape[1]), budget)]
    y, lower = corners[0], 0.0
    for _ in range(MAX_STEPS):
        corner = _corner(stacked, ends, y, budget)
        length = float(y @ y)
        lower = max(lower, max(float(y @ corner), 0.0) ** 2 / length if length > 0 else 0.0)
        if length - lower <= tolerance * max(lower, 1e-6):
            break
        corners.append(corner)
        A = np.array(corners)
        weights, _ = least_mixture(A @ A.T)
        kept = weights > 1e-12
        corners = [c for c, keep in zip(corners, kept, strict=True) if keep]
        y = weights[kept] @ A[kept]
    return lower, float(y @ y)


def _corner(stacked: Floats, ends: NDArray[np.int64], y: Floats, budget: int) -> Floats:
    """Return the sum of all clients' `budget` gradients with the smallest products with y."""
    total = np.zeros_like(y)
    for rows, prices in zip(np.split(stacked, ends), np.split(stacked @ y, ends), strict=True):
        chosen = np.argpartition(prices, budget - 1)[:budget] if budget < len(prices) else slice(None)
        total += rows[chosen].sum(axis=0)
    return total


def run(
    config: CoordinationStudy,
    given: Mapping[str, NDArray[np.floating]] | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StudyResult:
    """Run the study on generated clients, or on given ones: their gradients by name.

    `progress(done, total)` counts outcomes. The bound is not computed for given clients, as gradients may be long.
    """
    from coreplay.runtime.run_dir import versions

    total = len(config.methods) * len(config.rounds) + 1
    lower = upper = 0.0
    if given is None:
        clients = draw_clients(config)
        lower, upper = joint_bound(clients, config.budget)
    else:
        clients = list(given.values())
    progress(1, total)
    outcomes: list[Outcome] = []
    selections: dict[str, list[int]] = {}
    for method, rounds in product(config.methods, config.rounds):
        began = time.perf_counter()
        found = coordinate(clients, config.budget, method, rounds, config.seed)
        seconds = time.perf_counter() - began
        if given is not None and all(found.objective < outcome.objective for outcome in outcomes):
            selections = {name: kept.tolist() for name, kept in zip(given, found.selections, strict=True)}
        ratio = found.objective / lower if lower > 0 else None
        outcomes.append(Outcome(method, rounds, found.objective, ratio, found.bytes_up, found.bytes_down, seconds))
        progress(1 + len(outcomes), total)
    return StudyResult(config, lower, upper, outcomes, selections, versions())
