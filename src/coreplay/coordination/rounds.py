"""The server's loop of a coordination over any transport, and `coordinate`, which runs it in one process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from coreplay.array_types import Ints
from coreplay.coordination.client import MINIMUM_POOL, Answer, Client, Session
from coreplay.coordination.messages import NEVER, Broadcast, Stamp
from coreplay.coordination.method import GradientMatrix, check_quota, make_method
from coreplay.coordination.secure import ImpossibleSumError, add_securely
from coreplay.coordination.server import Receipt, RoundResult, Server
from coreplay.errors import InputError
from coreplay.selection.pool import Column
from coreplay.selection.quotas import Quota
from coreplay.selection.solvers.in_groups import indicator
from coreplay.validation import whole_number

RUN = "coordinate"


class SecureSumError(InputError):
    """A secure sum failed, because too few clients are left or one does not keep to the protocol."""


@dataclass(frozen=True)
class CoordinationSpec:
    """The settings of a coordination, the same at the server and at all clients."""

    run: str  # its name in messages
    period: int  # whose pools are chosen from
    rounds: int
    dimension: int  # length of a contribution
    method: str = "corrective"
    options: dict[str, Any] = field(default_factory=dict)  # of the method
    secure: bool = False  # whether the server learns only sums of contributions


class Transport(Protocol):
    """Brings requests to clients, and returns the answers of those who gave one."""

    def contribute(
        self, clients: Sequence[str], broadcast: bytes | None, *, secure: bool, attempt: int
    ) -> Iterator[tuple[str, Answer]]:
        """Let clients answer a broadcast, None being the first round."""

    def step(self, step: str, round: int, messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Let clients take one step of a secure sum."""

    def refuse(self, client: str, problem: str) -> None:
        """Record what is wrong with a client's answer, which does not count; without a client, with the whole sum."""


def run_rounds(
    transport: Transport, spec: CoordinationSpec, budgets: Mapping[str, int], observe: Callable[[RoundResult], None]
) -> bytes | None:
    """Run the rounds among these clients and return the last broadcast; None if there was none: they select alone."""
    if not budgets or not spec.rounds:
        return None
    about: dict[str, Any] = {"run": spec.run, "period": spec.period, "method": spec.method}
    server = Server(budgets, spec.dimension, spec.rounds, **about, **spec.options)
    gather = _gather_securely if spec.secure else _gather
    broadcast: bytes | None = None
    while not server.done:
        up, down = gather(transport, server, broadcast)
        if set(server.counted.values()) == {NEVER}:
            return None
        broadcast = server.broadcast().to_bytes()
        down += len(broadcast) * len(budgets)
        observe(replace(server.history[-1], bytes_up=up, bytes_down=down))
    return broadcast


def _gather(transport: Transport, server: Server, broadcast: bytes | None) -> tuple[int, int]:
    """Give the server every contribution of a round, and return the bytes up and down."""
    up = 0
    for client, answer in transport.contribute(list(server.budgets), broadcast, secure=False, attempt=0):
        if answer.data:
            up += len(answer.data)
            receipt = server.receive(answer.data, sender=client)
            if not receipt.counted:
                transport.refuse(client, f"sent a contribution that does not count: {receipt.reason}")
    return up, 0


def _gather_securely(transport: Transport, server: Server, broadcast: bytes | None) -> tuple[int, int]:
    """Give the server the sum of a round's contributions; a client's first answer can't join after round 0."""
    length = server.dimension

    def keys(clients: Sequence[str], attempt: int) -> dict[str, bytes]:
        found = {}
        for client, answer in transport.contribute(clients, broadcast, secure=True, attempt=attempt):
            if not answer.data:
                continue
            if answer.basis != server.counted[client]:
                transport.refuse(client, "sent the difference from an answer that was not counted")
            elif answer.dimension != length:
                transport.refuse(client, f"has a contribution of {answer.dimension} numbers: expected {length}")
            elif server.round == 0 or answer.basis != NEVER:
                found[client] = answer.data
        return found

    able = keys(list(server.budgets), 0)
    if len(able) < 2:  # a sum of one hides nothing
        return 0, 0

    def ask(step: str, messages: Mapping[str, bytes], attempt: int) -> Mapping[str, bytes]:
        if step != "keys":
            return transport.step(step, server.round, messages)
        found = keys(list(messages), attempt) if attempt else able
        return {client: found[client] for client in messages if client in found}

    stamp, bounds = Stamp(server.run, server.period, server.round), {client: server.bound(client) for client in able}
    try:
        found = add_securely(ask, bounds, length, stamp, report_culprit=transport.refuse)
    except ImpossibleSumError as error:
        transport.refuse("", f"secure sum of round {server.round} is not used: {error}")
        return 0, 0
    except InputError as error:
        raise SecureSumError(f"secure sum of period {server.period}, round {server.round}: {error}") from None
    server.receive_total(found.survivors, found.total)
    return found.bytes_up, found.bytes_down


@dataclass(frozen=True)
class Coordination:
    """The result of `coordinate`.

    Attributes
    ----------
    selections : list of arrays
        Sorted indices that each client keeps.
    objective : float
        ‖Σ selected unit gradients‖² over all clients, equation (6) of the paper on the integer selections; with target
        "mean" the squared distance between that sum and the target.
    history : list of RoundResult
        One entry per round.
    bytes_up : int
        Bytes that all clients together sent.
    bytes_down : int
        Bytes that all clients together received.
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
    minimum_pool: int = MINIMUM_POOL,
    secure: bool = False,
    quota: Quota = "none",
    columns: Sequence[Mapping[str, Column]] | None = None,
    new: Sequence[ArrayLike] | None = None,
    seen: Sequence[int] | None = None,
    **options: Any,
) -> Coordination:
    """Let clients choose jointly which samples to keep, exchanging only sums.

    Parameters
    ----------
    clients : list of (n, d) arrays or gradient matrices
        Loss gradients of each client, one row per sample, in any scale.
    budgets : int or list of int
        Number of samples that each client may keep. A client with no more than that keeps all and takes no part.
    method : str
        A name from `coordination_methods()`: "corrective" or "alternating" (the paper's).
    rounds : int
        Number of times that every client sends one vector and gets one; 0 for the uncoordinated selection.
    seed : int
        Seed of all random choices.
    minimum_pool : int
        A client with fewer samples selects alone.
    secure : bool
        Whether the server learns only sums of contributions.
    quota : str
        Groups of which each client must keep the same number of samples: "none", "period" (column `arrived`) or
        "class" (column `label`); "new_old" keeps new and old samples in the numbers of `approximate_uniform`.
    columns : list of mappings of str to (n, ...) array or function, optional
        What else is known of each client's samples.
    new : list of (n,) bool arrays, optional
        Which samples of each client are new in this period, for the quota "new_old".
    seen : list of int, optional
        How many samples each client saw in earlier periods, for the quota "new_old".
    **options
        Options of the method, such as ``target="mean"``: the sum of all kept gradients should be near that of all
        pools, each in proportion to its budget, instead of near zero.

    Examples
    --------
    >>> clients = [np.random.default_rng(k).normal(size=(20, 30)) + 0.5 for k in range(8)]
    >>> alone, jointly = coordinate(clients, 3, rounds=0), coordinate(clients, 3, rounds=4)
    >>> jointly.objective < alone.objective, [len(kept) for kept in jointly.selections][:3]
    (True, [3, 3, 3])
    """
    if getattr(clients, "ndim", None) == 2 or isinstance(clients, GradientMatrix):
        raise InputError("clients must be a list, one entry per client: got a single one; pass [clients]")
    rounds, seed = whole_number(rounds, "rounds", least=0), whole_number(seed, "seed", least=0)
    made = make_method(method, **options)
    check_quota(quota, made)
    shared: dict[str, Any] = {"run": RUN, "seed": seed, "method": made, "minimum_pool": minimum_pool, "quota": quota}
    known = _by_client({"columns": columns, "new": new, "seen": seen}, len(clients))
    everyone: list[Client] = []
    for k, (gradients, budget) in enumerate(zip(clients, _budgets(budgets, len(clients)), strict=True)):
        try:
            client = Client(str(k), gradients, budget, **shared, **known[k])
        except InputError as error:
            raise InputError(f"clients[{k}]: {error}") from None
        everyone.append(client)
        lengths = client.pool.dimension, everyone[0].pool.dimension
        if lengths[0] != lengths[1]:
            raise InputError(f"clients[{k}] has length {lengths[0]} but clients[0] has {lengths[1]}: they must agree")
    dimension = everyone[0].pool.dimension
    spec = CoordinationSpec(RUN, 0, rounds, dimension, method, options, secure)
    taking = {client.name: client.pool.budget for client in everyone if client.takes_part}
    results: list[RoundResult] = []
    sent = run_rounds(_InProcess(everyone), spec, taking, results.append)
    last = None if sent is None else Broadcast.from_bytes(sent)
    selections = [client.finish(last) for client in everyone]
    total = np.zeros(dimension)
    for client, kept in zip(everyone, selections, strict=True):
        x = indicator(kept, client.pool.size) - client.pool.offset
        total += np.asarray(client.pool.matrix.combine(x), dtype=np.float64)
    return Coordination(
        selections=selections,
        objective=float(np.dot(total, total)),
        history=results,
        bytes_up=sum(result.bytes_up for result in results),
        bytes_down=sum(result.bytes_down for result in results),
        refused=[receipt for result in results for receipt in result.refused],
    )


class _InProcess:
    """A transport among clients of this process."""

    def __init__(self, clients: list[Client]) -> None:
        self._sessions = {client.name: _session(client) for client in clients}

    def contribute(
        self, clients: Sequence[str], broadcast: bytes | None, *, secure: bool, attempt: int
    ) -> Iterator[tuple[str, Answer]]:
        message = None if broadcast is None else Broadcast.from_bytes(broadcast)  # once for all clients
        for name in clients:
            yield name, self._sessions[name].contribute(RUN, message, secure=secure, attempt=attempt)

    def step(self, step: str, round: int, messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
        return {name: self._sessions[name].step(RUN, step, round, data) for name, data in messages.items()}

    def refuse(self, client: str, problem: str) -> None:
        pass  # the server's receipts are in the result


def _session(client: Client) -> Session:
    return Session(lambda: client)


def _budgets(budgets: Any, clients: int) -> list[int]:
    if clients == 0:
        raise InputError("clients is empty: pass a list with one gradient matrix or array per client")
    if isinstance(budgets, Sequence | np.ndarray) and not isinstance(budgets, str):
        if len(budgets) != clients:
            raise InputError(f"budgets must have one entry per client: got {len(budgets)} for {clients} clients")
        return [whole_number(budget, "budget", least=1) for budget in budgets]
    return [whole_number(budgets, "budgets", least=1)] * clients


def _by_client(given: Mapping[str, Sequence[Any] | None], clients: int) -> list[dict[str, Any]]:
    """Return what was given of each client, from lists with one entry per client."""
    found: list[dict[str, Any]] = [{} for _ in range(clients)]
    for name, values in given.items():
        if values is None:
            continue
        if not isinstance(values, Sequence | np.ndarray) or len(values) != clients:
            raise InputError(f"{name} must be a list with one entry per client, {clients} in all: got {values!r:.80}")
        for entry, value in zip(found, values, strict=True):
            entry[name] = value
    return found
