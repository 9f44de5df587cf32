"""Engines: they carry requests to clients and replies back, and know nothing of mathematics."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coreplay.replay.contents import BufferStats
from coreplay.replay.store import Moment
from coreplay.runtime.events import Observe, Problem
from coreplay.runtime.requests import Evaluate, Reply, Request, TrainReply
from coreplay.tasks import WeightedSum

Missing = dict[str, str]  # who does not answer, or not as it should: why
Requests = Sequence[tuple[str, Request]]  # each with its client
Replies = Iterator[tuple[str, Reply]]
Check = Callable[[str, Reply], str]  # what is wrong with a client's reply; empty if nothing is


class EngineError(RuntimeError):
    """The engine can't go on: clients fail, or too few are left. What is done is kept, and the run can be resumed."""


class QuorumError(EngineError):
    """Too few clients have answered; names those that did not, and why."""


class ClientRegistry(Protocol):
    """Who takes part, and how much data each has: all that the server knows of it. A stream is one."""

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients, sorted."""

    @property
    def periods(self) -> int:
        """How many periods there are."""

    def counts(self, split: str) -> NDArray[np.int64]:
        """Return how many samples each client has in each period: (clients, periods)."""


@dataclass
class GroupSum:
    """The weighted sum of the replies of a group of clients, added up in their order."""

    sums: dict[str, NDArray[Any]] = field(default_factory=dict)
    weight: int = 0
    loss: WeightedSum = field(default_factory=WeightedSum)

    def add(self, reply: TrainReply, max_weight: int, out: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Add a reply, weighted by its samples but by no more than `max_weight`; `out` are vectors to sum into."""
        weight = min(reply.samples, max_weight)
        for name, array in reply.arrays.items():
            if name in self.sums:
                _tensor(self.sums[name]).add_(_tensor(array), alpha=weight)  # in one pass, without a copy
            else:
                self.sums[name] = np.multiply(array, weight, out=(out or {}).get(name), dtype=array.dtype)
        self.weight += weight
        self.loss += WeightedSum(reply.total, reply.weight)


def _tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor on the same memory; torch warns if it must not be written, and nobody does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


class Engine(ABC):
    """Where a run runs."""

    registry: ClientRegistry
    run_id: str = ""  # the name of the run in requests
    quorum: float = 1.0  # the fraction of the clients asked that must answer
    trusted: bool = True  # clients are simulated here, so what they say of themselves is true

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}  # how many samples each client keeps, as far as it is known

    @abstractmethod
    def ask(self, requests: Requests, observe: Observe, missing: Missing) -> Replies:
        """Bring requests to clients and return the replies in their order; put the others into `missing`."""

    def group_sums(
        self,
        groups: Sequence[Sequence[str]],
        request: Request,
        max_weight: int,
        check: Check,
        observe: Observe,
        missing: Missing,
    ) -> Iterator[GroupSum]:
        """Ask the clients of each group, and return the weighted sums of the groups in their order."""
        group_of = {client: k for k, group in enumerate(groups) for client in group}
        current, found = -1, GroupSum()
        for client, reply in self.ask([(client, request) for client in group_of], observe, missing):
            problem = check(client, reply)
            if problem:
                refuse(client, problem, observe, missing)
                continue
            assert isinstance(reply, TrainReply), "checked"
            if group_of[client] != current and current >= 0:
                yield found
                found = GroupSum()
            current = group_of[client]
            found.add(reply, max_weight)
            del reply  # as large as the model: not to be kept while waiting for the next one
        if current >= 0:
            yield found

    def discover(self, observe: Observe, period: int) -> dict[str, str]:
        """Get to know clients that have joined or come back; return those that can't take part, and why."""
        return {}

    def note_kept(self, period: int, kept: Mapping[str, int]) -> None:
        """Record how many samples clients keep after a period."""
        self.sizes.update(kept)

    def evaluation_requests(self, request: Evaluate) -> list[tuple[str, Evaluate]]:
        """Return whom to ask to evaluate a model: every client that has test samples."""
        counts = self.registry.counts("test").sum(axis=1)
        return [(client, request) for client, count in zip(self.registry.clients, counts, strict=True) if count]

    @abstractmethod
    def rewind(self, period: int) -> None:
        """Go back to the buffers of the end of `period` (-1: none), before the run goes on from there."""

    def fingerprint(self, before: Moment) -> str:
        """Return a text that tells the clients' buffers and states from any others; empty if the server has none."""
        return ""

    def buffer_stats(self) -> BufferStats | None:
        """Return what all buffers hold together; None if they are on the clients' own disks."""
        return None

    def check_quorum(self, asked: int, missing: Mapping[str, str], what: str) -> None:
        """Raise a `QuorumError` if too many of those who were asked are missing."""
        wanted = max(1, math.ceil(self.quorum * asked)) if asked else 0
        if asked - len(missing) < wanted:
            reasons = "; ".join(f"{client!r} {problem}" for client, problem in sorted(missing.items()))
            there = f"{asked - len(missing)} of {asked} clients answered, the quorum is {wanted}"
            raise QuorumError(f"{what}: {there}; missing: {reasons}")


def refuse(client: str, problem: str, observe: Observe, missing: Missing) -> None:
    """Record that a client's answer does not count, and why."""
    missing[client] = problem
    observe(Problem(f"client {client!r} {problem}"))
