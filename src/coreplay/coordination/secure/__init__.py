"""The secure sum: the server learns the sum of the vectors of those who answered, and no single vector.

A client that sends something wrong is named and left out; if its part is needed by then, the sum is repeated without
it, with fresh secrets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coreplay.coordination.messages import Stamp
from coreplay.coordination.secure.client import SecureClient
from coreplay.coordination.secure.protocol import Complaint, Keys, Masked, Reveal, Shares
from coreplay.coordination.secure.server import ImpossibleSumError, SecureServer, ThresholdError, Upward, coarse
from coreplay.errors import InputError

__all__ = ["ImpossibleSumError", "SecureClient", "SecureServer", "SecureSum", "ThresholdError", "add_securely"]

ATTEMPTS = 3
Ask = Callable[[str, Mapping[str, bytes], int], Mapping[str, bytes]]  # (step, message per client, attempt) to answers


@dataclass(frozen=True)
class SecureSum:
    """The sum, the clients whose vectors are in it, and the bytes that all clients together sent and received."""

    total: NDArray[np.float32]
    survivors: list[str]
    bytes_up: int
    bytes_down: int


def add_securely(
    ask: Ask,
    bounds: Mapping[str, float],
    dimension: int,
    stamp: Stamp,
    *,
    threshold: int | None = None,
    report_culprit: Callable[[str, str], None] = lambda client, reason: None,
) -> SecureSum:
    """Run a secure sum of vectors of one length, whose norms have these bounds, from its first message to its last.

    `ask` brings the messages of one step ("keys", "share", "mask", "reveal") to clients and returns the answers of
    those who gave one; every attempt begins with "keys", for which clients make fresh secrets. The threshold is that
    of `SecureServer`. `report_culprit` is called with each client that sent something wrong, and what was wrong.
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
        report_culprit(client, f"takes no part in the secure sum: {reason}")
    for attempt in range(ATTEMPTS):
        rest = {client: bound for client, bound in bounds.items() if client not in left_out}
        server = SecureServer(rest, dimension, stamp, threshold=threshold)
        try:
            return SecureSum(_attempt(server, counted), server.survivors, up, down)
        except InputError:
            if not server.culprits or attempt + 1 == ATTEMPTS or len(rest) - len(server.culprits) < 2:
                raise
        finally:
            for client, reason in server.culprits.items():
                report_culprit(client, reason)
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
    """Give the server the clients' answers, and name those who sent something else than a message of these kinds."""
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
