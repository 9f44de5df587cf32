"""The order of additions: it fixes a round's result to the bit, whatever the engine and the number of processes.

The clients of a round are dealt by size to a fixed number of groups; a group is summed client by client, and the sums
of the groups are added in their order.
"""

import heapq
from collections.abc import Mapping

import torch
from torch import Tensor


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


def add_weighted(total: Tensor, change: Tensor, samples: int, first: bool) -> None:
    """Add samples · change to a group's sum; the first change of a group makes it anew."""
    if first:
        torch.mul(change, samples, out=total)
    else:
        total.add_(change, alpha=samples)
