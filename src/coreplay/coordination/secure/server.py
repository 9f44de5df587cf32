"""The server half of a secure sum: it forwards, adds what it cannot read, and takes the masks off the sum.

    receive(keys) …    roster()        → to all
    receive(shares) …  inbox(name)     → to each
    receive(masked) …  request()       → to all who answered
    receive(reveal) …  total()         → the sum of those who answered, and who they are

A client may fall silent anywhere. Below the threshold the sum cannot be had, and `ThresholdError` says so.
"""

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from coreplay.coordination.secure import shamir
from coreplay.coordination.secure.client import SLACK, commitment, pair_key
from coreplay.coordination.secure.masks import add_masks, agree, from_words, scale_of
from coreplay.coordination.secure.messages import (
    Inbox,
    Keys,
    Masked,
    Request,
    Reveal,
    Roster,
    Shares,
    unhex,
)
from coreplay.errors import InputError

Upward = Keys | Shares | Masked | Reveal


class ThresholdError(InputError):
    """Too few clients are left to have the sum: nothing about any of them was learnt."""


class SecureServer:
    """The server's part in one secure sum.

    Parameters
    ----------
    bounds : mapping
        The clients asked, by name, and the largest norm that each one's vector may have.
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

    Examples
    --------
    >>> from coreplay.coordination.secure import SecureClient
    >>> stamp = {"run": "demo", "period": 0, "round": 0}
    >>> clients = [SecureClient(name, bound=1.0, **stamp) for name in "abc"]
    >>> server = SecureServer({"a": 1.0, "b": 1.0, "c": 1.0}, dimension=2, **stamp)
    >>> for client in clients: server.receive(client.advertise())
    >>> roster = server.roster()
    >>> for client in clients: server.receive(client.share(roster))
    >>> for client in clients[:2]: server.receive(client.mask(np.array([0.5, -0.25]), server.inbox(client.name)))
    >>> request = server.request()  # "c" has dropped out
    >>> for client in clients[:2]: server.receive(client.reveal(request))
    >>> server.total().round(6).tolist(), server.survivors
    ([1.0, -0.5], ['a', 'b'])
    """

    def __init__(
        self,
        bounds: Mapping[str, float],
        dimension: int,
        *,
        run: str,
        period: int,
        round: int,
        threshold: int | None = None,
    ) -> None:
        self.bounds = dict(bounds)
        self._stamp = (run, period, round)
        self.threshold = default_threshold(len(self.bounds)) if threshold is None else threshold
        if len(self.bounds) < 2:
            raise InputError(f"a secure sum needs at least 2 clients: got {len(self.bounds)}; do without it")
        if not len(self.bounds) // 2 < self.threshold <= len(self.bounds):
            raise InputError(
                f"threshold must be more than half of the {len(self.bounds)} clients, and not more than all: "
                f"got {self.threshold}"
            )
        self._keys: dict[str, Keys] = {}
        self._shares: dict[str, Shares] = {}
        self._answered: set[str] = set()
        self._reveals: dict[str, Reveal] = {}
        self._roster: Roster | None = None
        self._sharers: list[str] | None = None
        self._request: Request | None = None
        self._words = np.zeros(dimension, dtype=np.uint32)

    @property
    def survivors(self) -> list[str]:
        """The clients whose vectors are in the sum."""
        return sorted(self._answered)

    @property
    def sharers(self) -> list[str]:
        """The clients whose shares have come: those who get an inbox."""
        return sorted(self._shares) if self._sharers is None else self._sharers

    def receive(self, message: Upward) -> None:
        """Take a client's message; one that comes too late or twice changes nothing, a wrong one is an `InputError`."""
        if message.stamp != self._stamp:
            return
        if message.client not in self.bounds:
            raise InputError(f"client {message.client!r} is not in this sum")
        if isinstance(message, Keys):
            for key in (message.masks, message.shares):  # one bad key in the roster would stop everybody
                agree(X25519PrivateKey.generate(), unhex(key, 32, f"key of client {message.client!r}"), "check")
            if self._roster is None:
                self._keys.setdefault(message.client, message)
        elif isinstance(message, Shares):
            self._take_shares(message)
        elif isinstance(message, Masked):
            self._take_masked(message)
        elif self._request is not None and message.client in self._answered:
            self._reveals.setdefault(message.client, message)

    def roster(self) -> Roster:
        """Close the gathering of keys."""
        if self._roster is None:
            self._enough(len(self._keys), "sent keys")
            masks = {name: self._keys[name].masks for name in sorted(self._keys)}
            shares = {name: self._keys[name].shares for name in sorted(self._keys)}
            limit = float(sum(self.bounds[name] for name in masks))
            self._roster = Roster(*self._stamp, self.threshold, limit, masks, shares)
        return self._roster

    def inbox(self, name: str) -> Inbox:
        """Close the gathering of shares and return those for one client."""
        if self._sharers is None:
            self._enough(len(self._shares), "sent shares")
            self._sharers = sorted(self._shares)
        sealed = {peer: self._shares[peer].sealed[name] for peer in self._sharers if peer != name}
        return Inbox(*self._stamp, name, sealed)

    def request(self) -> Request:
        """Close the gathering of vectors."""
        if self._request is None:
            self._enough(len(self._answered), "sent a vector")
            self._request = Request(*self._stamp, self.survivors)
        return self._request

    def total(self) -> NDArray[np.float32]:
        """Take the masks off and return the sum of the survivors' vectors."""
        self._enough(len(self._reveals), "revealed their shares")
        roster, sharers = self.roster(), self._sharers or []
        dropped = [name for name in sharers if name not in self._answered]
        seeds = [self._seed(name) for name in self.survivors]
        plus: list[bytes] = []
        minus = list(seeds)
        for name in dropped:
            private = self._private(name)
            for survivor in self.survivors:
                key = pair_key(private, roster, name, survivor)
                (minus if survivor < name else plus).append(key)
        words = self._words.copy()
        add_masks(words, plus, minus)
        return from_words(words, scale_of(roster.limit * (1 + SLACK), len(roster.masks)))

    def _take_shares(self, message: Shares) -> None:
        if self._roster is None or self._sharers is not None:
            return
        others = set(self._roster.masks) - {message.client}
        if message.client not in self._roster.masks or set(message.sealed) != others:
            raise InputError(f"client {message.client!r} must send one share to each other client of the roster")
        self._shares.setdefault(message.client, message)

    def _take_masked(self, message: Masked) -> None:
        name = message.client
        if self._request is not None or self._sharers is None or name in self._answered:
            return
        if name not in self._sharers or message.words.shape != self._words.shape:
            raise InputError(
                f"vector of client {name!r} must have {len(self._words)} numbers and come after its shares: "
                f"got {len(message.words)}"
            )
        self._words += message.words
        self._answered.add(name)

    def _seed(self, name: str) -> bytes:
        seed = self._join(name, "seeds")
        if commitment(seed) != self._shares[name].commitment:
            raise InputError(f"shares of client {name!r} do not give its seed: one of them is wrong")
        return seed

    def _private(self, name: str) -> X25519PrivateKey:
        private = X25519PrivateKey.from_private_bytes(self._join(name, "keys"))
        if private.public_key().public_bytes_raw().hex() != self._keys[name].masks:
            raise InputError(f"shares of client {name!r} do not give its key: one of them is wrong")
        return private

    def _join(self, name: str, what: str) -> bytes:
        points = {peer: point for point, peer in enumerate(self.roster().masks, 1)}
        shares = {}
        for sender in sorted(self._reveals)[: self.threshold]:
            table = getattr(self._reveals[sender], what)
            shares[points[sender]] = unhex(table.get(name), shamir.SHARE_BYTES, f"share from {sender!r}")
        return shamir.join(shares)

    def _enough(self, count: int, what: str) -> None:
        if count < self.threshold:
            raise ThresholdError(f"{count} clients {what}: the threshold is {self.threshold}, so there is no sum")


def default_threshold(clients: int) -> int:
    """Return two thirds of the clients, rounded up, and always more than half.

    >>> default_threshold(2), default_threshold(3), default_threshold(10)
    (2, 2, 7)
    """
    return max(clients // 2 + 1, -(-2 * clients // 3))
