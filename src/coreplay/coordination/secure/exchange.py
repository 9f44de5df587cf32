"""A secure sum among clients of one process: messages of both halves carried to and fro, their bytes counted."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coreplay.coordination.secure.client import SecureClient
from coreplay.coordination.secure.messages import Inbox, Keys, Masked, Request, Reveal, Roster, Shares
from coreplay.coordination.secure.server import SecureServer


@dataclass(frozen=True)
class Exchange:
    """The sum, and the bytes that all clients together sent and got for it."""

    total: NDArray[np.float32]
    bytes_up: int
    bytes_down: int


def secure_sum(
    vectors: Mapping[str, NDArray[np.float32]],
    bounds: Mapping[str, float],
    *,
    run: str,
    period: int,
    round: int,
    threshold: int | None = None,
) -> Exchange:
    """Add the clients' vectors without any of them being seen.

    >>> vectors = {"a": np.float32([1, 0]), "b": np.float32([0, 1]), "c": np.float32([0, -1])}
    >>> found = secure_sum(vectors, dict.fromkeys(vectors, 1.0), run="demo", period=0, round=0)
    >>> (found.total.round(6) + 0.0).tolist()
    [1.0, 0.0]
    """
    up = down = 0
    names = sorted(vectors)
    clients = {name: SecureClient(name, run=run, period=period, round=round, bound=bounds[name]) for name in names}
    dimension = len(vectors[names[0]])
    server = SecureServer(
        {name: bounds[name] for name in names}, dimension, run=run, period=period, round=round, threshold=threshold
    )
    for client in clients.values():
        data = client.advertise().to_bytes()
        up += len(data)
        server.receive(Keys.from_bytes(data))
    data = server.roster().to_bytes()
    down += len(data) * len(names)
    roster = Roster.from_bytes(data)
    for client in clients.values():
        data = client.share(roster).to_bytes()
        up += len(data)
        server.receive(Shares.from_bytes(data))
    for name, client in clients.items():
        data = server.inbox(name).to_bytes()
        down += len(data)
        data = client.mask(vectors[name], Inbox.from_bytes(data)).to_bytes()
        up += len(data)
        server.receive(Masked.from_bytes(data))
    data = server.request().to_bytes()
    down += len(data) * len(names)
    request = Request.from_bytes(data)
    for client in clients.values():
        data = client.reveal(request).to_bytes()
        up += len(data)
        server.receive(Reveal.from_bytes(data))
    return Exchange(server.total(), up, down)
