"""`coordinate`: both halves in one process, on arrays or gradient matrices."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay.coordination.client import MINIMUM_POOL, Client
from coreplay.coordination.matrix import GradientMatrix
from coreplay.coordination.messages import Broadcast
from coreplay.coordination.method import make_method
from coreplay.coordination.rounds import CoordinationSpec, RoundResult, run_rounds
from coreplay.coordination.server import Receipt
from coreplay.coordination.session import Answer, Session
from coreplay.errors import InputError
from coreplay.validation import whole_number

Ints = NDArray[np.int64]
Missing = Callable[[int, int], bool]

RUN = "coordinate"


@dataclass(frozen=True)
class Coordination:
    """What `coordinate` found.

    Attributes
    ----------
    selections : list of arrays
        Sorted indices that each client keeps.
    objective : float
        ‖Σ selected unit gradients‖² over all clients, equation (6) of the paper on the integer selections.
    history : list of RoundResult
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
    history: list[RoundResult]
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
    taking = {client.name: client.pool.budget for client in everyone if client.takes_part}
    transport = _InProcess(everyone, missing or (lambda client, round: False))
    spec = CoordinationSpec(
        RUN, period, rounds, lengths[0], method, options, secure, tolerance=tolerance, threshold=threshold
    )
    results: list[RoundResult] = []
    last = run_rounds(transport, spec, taking, results.append)
    selections = [transport.finish(client.name, last if client.name in taking else None, rounds) for client in everyone]
    return Coordination(
        selections=selections,
        objective=_objective(everyone, selections),
        history=results,
        bytes_up=sum(result.bytes_up for result in results),
        bytes_down=sum(result.bytes_down for result in results),
        refused=[receipt for result in results for receipt in result.refused],
    )


class _InProcess:
    """A transport among clients of this process, some of which may be missing."""

    def __init__(self, clients: list[Client], missing: Missing) -> None:
        self._sessions = {client.name: Session(lambda client=client: client) for client in clients}  # type: ignore[misc]
        self._missing = missing
        self._read: tuple[bytes, Broadcast] | None = None

    def contribute(
        self, clients: Sequence[str], broadcast: bytes | None, *, secure: bool, attempt: int
    ) -> Iterator[tuple[str, Answer]]:
        message = self._message(broadcast)
        round = 0 if message is None else message.round + 1
        for name in clients:
            if not self._missing(int(name), round):
                yield name, self._sessions[name].contribute(RUN, message, secure=secure, attempt=attempt)

    def step(self, step: str, round: int, messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
        return {name: self._sessions[name].step(RUN, step, round, data) for name, data in messages.items()}

    def refuse(self, client: str, problem: str) -> None:
        pass  # the server's receipts are in the result

    def finish(self, name: str, broadcast: bytes | None, rounds: int) -> Ints:
        session = self._sessions[name]
        if broadcast is None or self._missing(int(name), rounds):
            return session.client.finish()
        return session.finish(RUN, self._message(broadcast))

    def _message(self, broadcast: bytes | None) -> Broadcast | None:
        """Read a broadcast once for all clients."""
        if broadcast is None:
            return None
        if self._read is None or self._read[0] is not broadcast:
            self._read = broadcast, Broadcast.from_bytes(broadcast)
        return self._read[1]


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
