"""What the server makes of the clients' replies: a round's update, and the sums of an evaluation.

The clients of a round are partitioned by size into a fixed number of groups. A group is summed client by client, and
the sums of the groups are added in their order. So the result is the same to the bit, whatever the engine and the
number of processes.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import InputError
from coreplay.runtime.engine import Engine, refuse
from coreplay.runtime.events import Observe, Problem
from coreplay.runtime.requests import Evaluate, EvaluateReply, Reply, Request, TrainReply
from coreplay.seeding import generator
from coreplay.tasks import WeightedSum

FEW = 4  # with fewer clients in a round a large share of one is no surprise


def partition_clients(size: Mapping[str, int], groups: int) -> list[tuple[str, ...]]:
    """Partition clients into groups of similar size: the largest first, each to the group with the least so far.

    >>> partition_clients({"a": 5, "b": 1, "c": 3, "d": 1}, 2)
    [('a', 'd'), ('c', 'b')]
    """
    piles: list[tuple[int, int, list[str]]] = [(0, k, []) for k in range(min(groups, len(size)))]
    for client in sorted(size, key=lambda c: (-size[c], c)):
        load, k, members = heapq.heappop(piles)
        heapq.heappush(piles, (load + size[client] + 1, k, [*members, client]))
    return [tuple(members) for _, _, members in sorted(piles, key=lambda pile: pile[1])]


def sample_round(
    clients: NDArray[np.int64], most: int, sampling: str, seed: tuple[int, int], round: int
) -> NDArray[np.int64]:
    """Return at most `most` of the clients for a round, given (seed of the run, period) and `federated.sampling`.

    By "reshuffle" clients are shuffled and dealt to as few rounds as possible, and then shuffled again.

    >>> dealt = [sample_round(np.arange(5), 2, "reshuffle", (0, 0), round).tolist() for round in range(3)]
    >>> sorted(client for part in dealt for client in part), max(map(len, dealt))
    ([0, 1, 2, 3, 4], 2)
    """
    if sampling == "uniform":
        return generator(*seed, "clients", round).choice(clients, most, replace=False)
    number = -(-len(clients) // most)
    turn, part = divmod(round, number)
    shuffled = generator(*seed, "clients", turn).permutation(clients)
    return np.array_split(shuffled, number)[part]


class Weights:
    """How much each client of a round counts: by its samples, but no more than `ratio` times the median client.

    The server knows the counts before the round, so every engine gives the same weights. Of an even number of clients
    the median is the lower one in the middle, so one of two clients does not set its own limit. 0 sets no limit.

    >>> weights = Weights(10.0)
    >>> weights.largest({"a": 5, "b": 7, "c": 900}), weights.largest({"a": 5, "b": 900})
    (70, 50)
    >>> Weights(0.0).largest({"a": 5, "b": 900})
    900
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._named: set[str] = set()

    def largest(self, counts: Mapping[str, int]) -> int:
        """Return the largest weight of a round, given the number of samples of each client."""
        most = max(counts.values(), default=1)
        return min(most, max(1, int(self._ratio * median_low(counts.values())))) if self._ratio and counts else most

    def warnings(self, counts: Mapping[str, int]) -> list[str]:
        """Return a sentence about each client that has more than a third of the round's weight, the first time."""
        limit = self.largest(counts)
        total = sum(min(count, limit) for count in counts.values())
        found = []
        for client, count in counts.items():
            if len(counts) >= FEW and 3 * min(count, limit) > total and client not in self._named:
                self._named.add(client)
                limited = " (limited by federated.max_weight_ratio)" if count > limit else ""
                share = f"{min(count, limit) / total:.0%} of the round's weight"
                found.append(f"client {client!r} has {share}, by the {count} samples that it says it has{limited}")
        return found


@dataclass(frozen=True)
class Update:
    """The sums over clients of (weight x vector), the sum of the weights, the losses, and who is missing and why."""

    sums: Mapping[str, NDArray[Any]]
    weight: int
    loss: WeightedSum
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The sums of a model over the test set of every period, and the clients whose test sets are not in them."""

    sums: list[WeightedSum]
    missing: Mapping[str, str] = field(default_factory=dict)  # client: why


def sum_over_clients(
    engine: Engine,
    request: Request,
    clients: Sequence[str],
    samples: Callable[[str], int],
    names: Mapping[str, int],
    groups: int,
    weights: Weights,
    observe: Observe,
    what: str,
) -> Update:
    """Send a `Train` or `FinishPeriod` request to clients and add up their vectors; `InputError` if none answered.

    Each must send vectors of these `names` and lengths. `samples` returns how many samples a client trains on; it is
    called after clients that came back have joined. `what` names the request in errors.
    """
    engine.discover(observe, request.period)
    counts = {client: samples(client) for client in clients}
    largest = weights.largest(counts)
    if not engine.trusted:
        for text in weights.warnings(counts):
            observe(Problem(text))
    dtype = next(iter(request.arrays.values())).dtype
    sums = {name: np.zeros(length, dtype=dtype) for name, length in names.items()}
    weight, loss, missing = 0, WeightedSum(), dict[str, str]()

    def check(client: str, reply: Reply) -> str:
        return _check_update(reply, counts[client], names, dtype)

    parts = partition_clients(counts, groups)
    for group in engine.group_sums(parts, request, largest, check, observe, missing):
        for name in sums:
            sums[name] += group.sums[name]
        weight += group.weight
        loss += group.loss
    engine.check_quorum(len(counts), missing, what)
    if not weight:
        raise InputError(f"no client answered: {what}: {missing}")
    return Update(sums, weight, loss, missing)


def _check_update(reply: Reply, most: int, names: Mapping[str, int], dtype: np.dtype[Any]) -> str:
    """Return what is wrong with the vectors of a client that has `most` samples; empty if nothing is."""
    if not isinstance(reply, TrainReply):
        return "sent a reply of another kind"
    if set(reply.arrays) != set(names):
        return f"must send the vectors {sorted(names)}: got {sorted(reply.arrays)[:10]}"
    for name, length in names.items():
        vector = reply.arrays[name]
        if vector.shape != (length,) or vector.dtype != dtype:
            return f"sent a {name} of another shape than the model's ({length},)"
        if not np.isfinite(np.dot(vector, vector)):
            return f"sent a {name} with NaN or infinity"
    if not 1 <= reply.samples <= most:
        return f"must say how many samples it has, from 1 to {most}: got {reply.samples}"
    return "" if np.isfinite([reply.total, reply.weight]).all() else "sent a loss that is not a finite number"


def evaluate(engine: Engine, request: Evaluate, periods: int, largest_weight: float, observe: Observe) -> Evaluation:
    """Measure a model on the test sets of all clients, period by period."""
    missing = dict[str, str]()
    tests = engine.registry.counts("test")[:, :periods]
    counts = dict(zip(engine.registry.clients, tests.tolist(), strict=True))
    asked = engine.evaluation_requests(request)
    sums = [WeightedSum()] * periods
    for client, reply in engine.ask(asked, observe, missing):
        problem = _check_evaluated(reply, counts.get(client), periods, largest_weight)
        if problem:
            refuse(client, problem, observe, missing)
            continue
        assert isinstance(reply, EvaluateReply), "checked"
        found = zip(reply.totals, reply.weights, strict=True)
        sums = [one + WeightedSum(total, weight) for one, (total, weight) in zip(sums, found, strict=True)]
    engine.check_quorum(len(asked), missing, "evaluation")
    return Evaluation(sums, missing)


def _check_evaluated(reply: Reply, counts: Sequence[int] | None, periods: int, largest_weight: float) -> str:
    """Return what is wrong with a client's sums over its test sets; empty if nothing is."""
    if not isinstance(reply, EvaluateReply) or not len(reply.totals) == len(reply.weights) == periods:
        return f"must send {periods} sums of metric terms and of weights"
    if counts is None:  # of the engine's own process, for all clients together
        return ""
    if not np.isfinite([*reply.totals, *reply.weights]).all():
        return f"must send {periods} sums of metric terms and of weights, all finite"
    for period, (total, weight, count) in enumerate(zip(reply.totals, reply.weights, counts, strict=True)):
        if not 0 <= weight <= (count * largest_weight if count else 0) or (total and not weight):
            return f"sent weight {weight:g} for the {count} test samples of period {period}"
    return ""
