"""The order of additions: it fixes a round's result to the bit, whatever the engine and the number of processes.

The clients of a round are dealt by size to a fixed number of groups; a group is summed client by client, and the sums
of the groups are added in their order.
"""

import heapq
from collections.abc import Mapping
from statistics import median_low

import torch
from torch import Tensor

FEW = 4  # with fewer clients in a round a large share of one is no surprise


def deal(size: Mapping[str, int], groups: int) -> list[tuple[str, ...]]:
    """Deal clients to groups of like size: the largest first, each to the group with the least so far.

    >>> deal({"a": 5, "b": 1, "c": 3, "d": 1}, 2)
    [('a', 'd'), ('c', 'b')]
    """
    piles: list[tuple[int, int, list[str]]] = [(0, k, []) for k in range(min(groups, len(size)))]
    for client in sorted(size, key=lambda c: (-size[c], c)):
        load, k, members = heapq.heappop(piles)
        heapq.heappush(piles, (load + size[client] + 1, k, [*members, client]))
    return [tuple(members) for _, _, members in sorted(piles, key=lambda pile: pile[1])]


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
        """Return the largest weight of a round whose clients have so many samples."""
        most = max(counts.values(), default=1)
        return min(most, max(1, int(self._ratio * median_low(counts.values())))) if self._ratio and counts else most

    def warnings(self, counts: Mapping[str, int]) -> list[str]:
        """Return a sentence about each client that has more than a third of the round's weight, the first time."""
        largest = self.largest(counts)
        total = sum(min(count, largest) for count in counts.values())
        heavy = [c for c, count in counts.items() if len(counts) >= FEW and 3 * min(count, largest) > total]
        fresh = [client for client in heavy if client not in self._named]
        self._named.update(fresh)
        return [
            f"client {client!r} has {min(counts[client], largest) / total:.0%} of the round's weight, by the "
            f"{counts[client]} samples that it says it has"
            + (" (limited by federated.max_weight_ratio)" if counts[client] > largest else "")
            for client in fresh
        ]


def add_weighted(total: Tensor, change: Tensor, weight: int, first: bool) -> None:
    """Add weight · change to a group's sum; the first change of a group makes it anew."""
    if first:
        torch.mul(change, weight, out=total)
    else:
        total.add_(change, alpha=weight)
