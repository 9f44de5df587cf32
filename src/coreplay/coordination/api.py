"""`coordinate`: both halves in one process, on arrays or gradient matrices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay.coordination.client import MINIMUM_POOL, Client
from coreplay.coordination.matrix import GradientMatrix
from coreplay.coordination.messages import NEVER, Broadcast, Contribution
from coreplay.coordination.method import make_method
from coreplay.coordination.secure.exchange import secure_sum
from coreplay.coordination.server import Receipt, Server
from coreplay.errors import InputError
from coreplay.selection.pool import whole_number

Ints = NDArray[np.int64]
Missing = Callable[[int, int], bool]

RUN = "coordinate"


@dataclass(frozen=True)
class RoundReport:
    """One round: who answered, what the server knew of the objective after it, and the bytes of all clients together.

    `relaxed` and `integer` are as in `Round`, of the answers of this round. What the clients make of the last broadcast
    is in `Coordination.objective`.
    """

    round: int
    answered: int
    relaxed: float
    integer: float | None
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Coordination:
    """What `coordinate` found.

    Attributes
    ----------
    selections : list of arrays
        Sorted indices that each client keeps.
    objective : float
        ‖Σ selected unit gradients‖² over all clients, equation (6) of the paper on the integer selections.
    history : list of RoundReport
        One per round.
    bytes_up : int
        What all clients together sent.
    bytes_down : int
        What all clients together got.
    refused : list of Receipt
        Contributions that the server refused, with the reason.
    """

    selections: list[Ints]
    objective: float
    history: list[RoundReport]
    bytes_up: int
    bytes_down: int
    refused: list[Receipt]


def coordinate(
    clients: Sequence[ArrayLike | GradientMatrix],
    budgets: int | Sequence[int],
    method: str = "corrective",
    rounds: int = 4,
    seed: int = 0,
    *,
    period: int = 0,
    minimum_pool: int = MINIMUM_POOL,
    tolerance: float = 0.0,
    secure: bool = False,
    threshold: int | None = None,
    missing: Missing | None = None,
    **options: Any,
) -> Coordination:
    """Let clients choose jointly which samples to keep, through sums only.

    Parameters
    ----------
    clients : list of (n, d) arrays or gradient matrices
        One per client: loss gradients, one row per sample, in any scale.
    budgets : int or list of int
        How many samples each may keep. A client whose pool is not larger keeps all and stays out of the exchange.
    method : str
        A name from `coordination_methods()`: "corrective" or "alternating" (the paper's).
    rounds : int
        How often every client sends one vector and gets one; 0 for the uncoordinated selection.
    seed : int
        Makes every random choice.
    period : int
        Of the run; another period makes other random choices.
    minimum_pool : int
        A client with fewer samples selects alone.
    tolerance : float
        Stop when the relaxed objective fell by less than this share in a round.
    secure : bool
        Add up the contributions so that the server learns the sum only.
    threshold : int, optional
        Clients needed for a secure sum, of those who answer; two thirds if not given.
    missing : function, optional
        `missing(client, round)` says whether the client's link is down in that round (`rounds`: at the end).
    **options
        Options of the method, such as ``diagonal="zero"`` for "alternating".

    Examples
    --------
    >>> clients = [np.random.default_rng(k).normal(size=(20, 30)) + 0.5 for k in range(8)]
    >>> alone, jointly = coordinate(clients, 3, rounds=0), coordinate(clients, 3, rounds=4)
    >>> jointly.objective < alone.objective, [len(kept) for kept in jointly.selections][:3]
    (True, [3, 3, 3])
    """
    if getattr(clients, "ndim", None) == 2 or isinstance(clients, GradientMatrix):
        raise InputError(
            "clients must be a list, one entry a client: got a single one; pass [clients] if that is meant"
        )
    sizes = _budgets(budgets, len(clients))
    rounds = whole_number(rounds, "rounds", least=0)
    chosen = make_method(method, **options)
    shared: dict[str, Any] = {"run": RUN, "period": whole_number(period, "period", least=0), "method": chosen}
    seed = whole_number(seed, "seed", least=0)
    everyone = []
    for k, (gradients, budget) in enumerate(zip(clients, sizes, strict=True)):
        try:
            everyone.append(Client(str(k), gradients, budget, seed=seed, minimum_pool=minimum_pool, **shared))
        except InputError as error:
            raise InputError(f"clients[{k}]: {error}") from None
    lengths = [client.pool.dimension for client in everyone]
    for k, length in enumerate(lengths):
        if length != lengths[0]:
            raise InputError(f"clients[{k}] has length {length} but clients[0] has {lengths[0]}: gradients must agree")
    taking = {k: client for k, client in enumerate(everyone) if client.takes_part}
    absent = missing or (lambda client, round: False)
    history: list[RoundReport] = []
    final: Broadcast | None = None
    refused: list[Receipt] = []
    if taking and rounds:
        budget_of = {client.name: client.pool.budget for client in taking.values()}
        server = Server(budget_of, lengths[0], rounds, tolerance=tolerance, **shared)
        while not server.done:
            final, report = _round(server, taking, final, absent, secure, threshold)
            history.append(report)
        refused = server.refusals
    selections = [
        client.finish(final if k in taking and not absent(k, rounds) else None) for k, client in enumerate(everyone)
    ]
    return Coordination(
        selections=selections,
        objective=_objective(everyone, selections),
        history=history,
        bytes_up=sum(report.bytes_up for report in history),
        bytes_down=sum(report.bytes_down for report in history),
        refused=refused,
    )


def _round(
    server: Server,
    clients: dict[int, Client],
    before: Broadcast | None,
    absent: Missing,
    secure: bool,
    threshold: int | None,
) -> tuple[Broadcast, RoundReport]:
    """Let every client that is there answer, close the round, and count the bytes."""
    up = down = 0
    sent: list[Contribution] = []
    for k, client in clients.items():
        if absent(k, server.round):
            continue
        contribution = client.begin() if before is None else client.step(before)
        if contribution is None:
            continue
        if secure:
            sent.append(contribution)
        else:
            data = contribution.to_bytes()
            up += len(data)
            server.receive(data)
    if secure:
        up, down = _add_securely(server, sent, threshold)
    round = server.round
    after = Broadcast.from_bytes(server.broadcast().to_bytes())
    heard = sum(not absent(k, round + 1) for k in clients)
    down += heard * len(after.to_bytes())
    closed = server.history[-1]
    return after, RoundReport(round, closed.answered, closed.relaxed, closed.integer, up, down)


def _add_securely(server: Server, sent: list[Contribution], threshold: int | None) -> tuple[int, int]:
    """Give the server the sum of the contributions; a client's first answer cannot join after round 0."""
    able = [c for c in sent if server.round == 0 or c.basis != NEVER]
    if not able:
        return 0, 0
    found = secure_sum(
        {c.client: c.vector for c in able},
        {c.client: server.bound(c.client) for c in able},
        run=server.run,
        period=server.period,
        round=server.round,
        threshold=threshold,
    )
    server.receive_total({c.client: c.basis for c in able if c.client in found.survivors}, found.total)
    return found.bytes_up, found.bytes_down


def _objective(clients: list[Client], selections: list[Ints]) -> float:
    total: NDArray[np.float64] | float = 0.0
    for client, kept in zip(clients, selections, strict=True):
        x = np.zeros(client.pool.size)
        x[kept] = 1.0
        total = total + np.asarray(client.pool.matrix.combine(x), dtype=np.float64)
    return float(np.dot(total, total))


def _budgets(budgets: Any, clients: int) -> list[int]:
    if clients == 0:
        raise InputError("clients is empty: pass a list with one gradient matrix or array a client")
    if isinstance(budgets, Sequence | np.ndarray) and not isinstance(budgets, str):
        if len(budgets) != clients:
            raise InputError(f"budgets must have one entry a client: got {len(budgets)} for {clients} clients")
        return [whole_number(budget, "budget", least=1) for budget in budgets]
    return [whole_number(budgets, "budgets", least=1)] * clients
