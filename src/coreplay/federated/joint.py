"""The server's loop of a coordination: contributions in, one broadcast out, for some rounds; an engine carries them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coreplay.coordination import Receipt, Round, Server
from coreplay.coordination.messages import NEVER
from coreplay.federated.engine import Carrier, Watch


@dataclass(frozen=True)
class Terms:
    """What a coordination is about; the same at the server and at all clients."""

    run: str
    period: int
    rounds: int
    dimension: int  # length of a contribution
    method: str = "corrective"
    options: dict[str, Any] = field(default_factory=dict)
    secure: bool = False


@dataclass(frozen=True)
class Told:
    """One closed round: the objectives that the server knows, the bytes of all clients, and what was refused."""

    latest: Round
    bytes_up: int
    bytes_down: int
    refused: list[Receipt]


def negotiate(
    carrier: Carrier,
    terms: Terms,
    budgets: Mapping[str, int],
    values: Any,
    watch: Watch,
    tell: Callable[[Told], None],
) -> bytes | None:
    """Run the rounds and return the last broadcast; None if there was none, and all choose alone."""
    broadcast: bytes | None = None
    if not budgets or not terms.rounds:
        return None
    about: dict[str, Any] = {"run": terms.run, "period": terms.period, "method": terms.method}
    server = Server(budgets, terms.dimension, terms.rounds, **about, **terms.options)
    while not server.done:
        up = down = 0
        if terms.secure:
            bounds = {client: server.bound(client) for client in budgets}
            found = carrier.contribute_securely(
                terms.period, server.round, bounds, server.counted, values, broadcast, watch
            )
            if found is not None:
                up, down = found.bytes_up, found.bytes_down
                server.receive_total(found.bases, found.total)
        else:
            for data in carrier.contribute(terms.period, list(budgets), values, broadcast, watch):
                up += len(data)
                receipt = server.receive(data)
                if not receipt.counted:
                    watch({"text": f"contribution of client {receipt.client!r} does not count: {receipt.reason}"})
        if set(server.counted.values()) == {NEVER}:
            return None
        broadcast = server.broadcast().to_bytes()
        latest = server.history[-1]
        refused = [receipt for receipt in server.refusals if receipt.round == latest.round]
        tell(Told(latest, up, down + len(broadcast) * len(budgets), refused))
    return broadcast
