"""One secure sum from its first message to its last, over whatever carries them; and among clients of one process.

A client that sends something wrong is named and left out, and where its part is needed by then, the sum is done again
without it, with fresh secrets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coreplay.coordination.secure.client import SecureClient
from coreplay.coordination.secure.messages import Complaint, Keys, Masked, Reveal, Shares
from coreplay.coordination.secure.server import SecureServer, Upward, coarse
from coreplay.errors import InputError

ATTEMPTS = 3
Ask = Callable[[str, Mapping[str, bytes], int], Mapping[str, bytes]]  # (step, a message per client, attempt) to answers


@dataclass(frozen=True)
class Exchange:
    """The sum, whose vectors it holds, and the bytes that all clients together sent and got for it."""

    total: NDArray[np.float32]
    survivors: list[str]
    bytes_up: int
    bytes_down: int


def add_securely(
    ask: Ask,
    bounds: Mapping[str, float],
    dimension: int,
    *,
    run: str,
    period: int,
    round: int,
    threshold: int | None = None,
    name: Callable[[str, str], None] = lambda client, reason: None,
) -> Exchange:
    """Carry out a secure sum.

    Parameters
    ----------
    ask : function
        Brings messages of one step ("keys", "share", "mask", "reveal") to clients and returns the answers of those who
        gave one. Every attempt begins with "keys", for which clients make fresh secrets.
    bounds : mapping
        The clients asked, and the largest norm that each one's vector may have.
    dimension : int
        Length of the vectors.
    run : str
        The run that the sum belongs to.
    period : int
        The period that the sum belongs to.
    round : int
        The round that the sum belongs to.
    threshold : int, optional
        How many must answer to the end: more than half, two thirds if not given.
    name : function
        Called with each client that sent something wrong, and what was wrong.
    """
    up = down = 0

    def counted(step: str, messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
        nonlocal up, down
        answers = ask(step, messages, attempt)
        down += sum(map(len, messages.values()))
        up += sum(map(len, answers.values()))
        return answers

    left_out = coarse(bounds, dimension)
    for client, reason in left_out.items():
        name(client, f"takes no part in the secure sum: {reason}")
    for attempt in range(ATTEMPTS):
        rest = {client: bound for client, bound in bounds.items() if client not in left_out}
        server = SecureServer(rest, dimension, run=run, period=period, round=round, threshold=threshold)
        try:
            total = _attempt(server, counted)
            return Exchange(total, server.survivors, up, down)
        except InputError:
            if not server.culprits or attempt + 1 == ATTEMPTS or len(rest) - len(server.culprits) < 2:
                raise
        finally:
            for client, reason in server.culprits.items():
                name(client, reason)
            left_out |= server.culprits
    raise AssertionError("the last attempt returns or raises")


def _attempt(
    server: SecureServer, ask: Callable[[str, Mapping[str, bytes]], Mapping[str, bytes]]
) -> NDArray[np.float32]:
    _take(server, ask("keys", dict.fromkeys(server.bounds, b"")), Keys)
    roster = server.roster()
    _take(server, ask("share", dict.fromkeys(roster.masks, roster.to_bytes())), Shares)
    _take(server, ask("mask", {name: server.inbox(name).to_bytes() for name in server.sharers}), Masked, Complaint)
    request = server.request()
    _take(server, ask("reveal", dict.fromkeys(request.survivors, request.to_bytes())), Reveal)
    return server.total()


def _take(server: SecureServer, answers: Mapping[str, bytes], *kinds: type[Upward]) -> None:
    for client, data in answers.items():
        try:
            message = _read(data, kinds)
            if message.client != client:
                raise InputError(f"it is of {message.client[:40]!r}")
            server.receive(message)
        except InputError as error:
            server.blame(client, f"sent a wrong message of the secure sum: {error}")


def _read(data: bytes, kinds: tuple[type[Upward], ...]) -> Upward:
    for kind in kinds[:-1]:
        try:
            return kind.from_bytes(data)
        except InputError:
            continue
    return kinds[-1].from_bytes(data)


def secure_sum(
    vectors: Mapping[str, NDArray[np.float32]],
    bounds: Mapping[str, float],
    *,
    run: str,
    period: int,
    round: int,
    threshold: int | None = None,
) -> Exchange:
    """Add the vectors of clients of this process without any of them being seen.

    >>> vectors = {"a": np.float32([1, 0]), "b": np.float32([0, 1]), "c": np.float32([0, -1])}
    >>> found = secure_sum(vectors, dict.fromkeys(vectors, 1.0), run="demo", period=0, round=0)
    >>> (found.total.round(6) + 0.0).tolist()
    [1.0, 0.0]
    """
    clients: dict[str, SecureClient] = {}

    def ask(step: str, messages: Mapping[str, bytes], attempt: int) -> Mapping[str, bytes]:
        if step == "keys":
            for name in messages:
                clients[name] = SecureClient(name, run=run, period=period, round=round, bound=bounds[name])
            return {name: clients[name].advertise().to_bytes() for name in messages}
        return {name: clients[name].answer(step, data, vectors[name]) for name, data in messages.items()}

    names = sorted(vectors)
    given = {name: bounds[name] for name in names}
    return add_securely(ask, given, len(vectors[names[0]]), run=run, period=period, round=round, threshold=threshold)
