"""The server half of a secure sum: it forwards, adds what it cannot read, and takes the masks off the sum.

    receive(keys) …    roster()        → to all
    receive(shares) …  inbox(name)     → to each
    receive(masked) …  request()       → to all who answered
    receive(reveal) …  total()         → the sum of those who answered, and who they are

A client may drop out at any step; below the threshold there is no sum, and `ThresholdError` says so. Messages are
checked on arrival; `culprits` names those who sent something wrong. `add_securely` repeats the sum without them.
"""

import math
from collections.abc import Mapping
from itertools import permutations
from statistics import median_low

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from coreplay.coordination.messages import SLACK, Stamp, norm
from coreplay.coordination.secure import protocol
from coreplay.coordination.secure.protocol import Complaint, Inbox, Keys, Masked, Request, Reveal, Roster, Shares
from coreplay.errors import InputError

Upward = Keys | Shares | Masked | Complaint | Reveal
COARSE = 0.01  # largest rounding of one vector, as a fraction of the median bound


class ThresholdError(InputError):
    """Too few clients are left for the sum: nothing about any of them was learnt."""


class ImpossibleSumError(InputError):
    """The sum is longer than its vectors can be: a client ignored its bound, and nobody can tell which one."""


class SecureServer:
    """The server's part in one secure sum.

    Parameters
    ----------
    bounds : mapping
        Largest norm of each client's vector, by name.
    dimension : int
        Length of the vectors.
    stamp : Stamp
        Run, period and round of the sum.
    threshold : int, optional
        Number of clients that must answer to the end: more than half, two thirds by default.

    Examples
    --------
    >>> from coreplay.coordination.secure import SecureClient
    >>> stamp = Stamp("demo", period=0, round=0)
    >>> clients = [SecureClient(name, stamp, bound=1.0) for name in "abc"]
    >>> server = SecureServer({"a": 1.0, "b": 1.0, "c": 1.0}, 2, stamp)
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
        self, bounds: Mapping[str, float], dimension: int, stamp: Stamp, *, threshold: int | None = None
    ) -> None:
        self.bounds, self._stamp = dict(bounds), stamp
        count = len(self.bounds)
        self.threshold = math.ceil(2 * count / 3) if threshold is None else threshold
        if count < 2:
            raise InputError(f"a secure sum needs at least 2 clients: got {count}; do without it")
        if not count // 2 < self.threshold <= count:
            raise InputError(
                f"threshold must be more than half of the {count} clients and at most all: got {threshold}"
            )
        for problem in coarse(self.bounds, dimension).values():
            raise InputError(problem)
        self.culprits: dict[str, str] = {}  # client: what was wrong
        self._keys: dict[str, Keys] = {}
        self._shares: dict[str, Shares] = {}
        self._complaints: dict[str, set[str]] = {}
        self._answered: set[str] = set()
        self._reveals: dict[str, Reveal] = {}
        self._roster: Roster | None = None
        self._shared = False  # whether the gathering of shares is closed
        self._request: Request | None = None
        self._words = np.zeros(dimension, dtype=np.uint32)

    @property
    def survivors(self) -> list[str]:
        """The clients whose vectors are in the sum."""
        return sorted(self._answered)

    @property
    def sharers(self) -> list[str]:
        """The clients whose shares have come: those who get an inbox."""
        return sorted(self._shares)

    def receive(self, message: Upward) -> None:
        """Take a client's message; a late or repeated one changes nothing, a wrong one is an `InputError`."""
        if message.stamp != self._stamp:
            return
        if message.client not in self.bounds:
            raise InputError(f"client {message.client!r} is not in this sum")
        getattr(self, f"_take_{message.kind()}")(message)

    def blame(self, client: str, reason: str) -> None:
        """Name a client that sent something wrong; the first reason stays."""
        self.culprits.setdefault(client, reason)

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
        self._enough(len(self._shares), "sent shares")
        self._shared = True
        others = [peer for peer in self.sharers if peer != name]
        sealed = {peer: self._shares[peer].sealed[name] for peer in others}
        return Inbox(*self._stamp, name, sealed, {peer: self._shares[peer].digests[name] for peer in others})

    def request(self) -> Request:
        """Close the gathering of vectors; `InputError` if complaints name culprits."""
        if self._request is None:
            self._judge()
            self._enough(len(self._answered), "sent a vector")
            self._request = Request(*self._stamp, self.survivors)
        return self._request

    def total(self) -> NDArray[np.float32]:
        """Take the masks off and return the sum of the survivors' vectors."""
        if len(self._reveals) < self.threshold:
            raise ThresholdError(
                f"shares of {len(self._reveals)} clients do not give the sum: the threshold is {self.threshold}"
            )
        roster = self.roster()
        plus, minus = list[bytes](), [self._secret(name, "seeds") for name in self.survivors]
        for name in sorted(set(self._shares) - self._answered):
            private = X25519PrivateKey.from_private_bytes(self._secret(name, "keys"))
            for survivor in self.survivors:
                key = protocol.pair_key(private, roster, name, survivor)
                (minus if survivor < name else plus).append(key)
        words = self._words.copy()
        protocol.add_masks(words, plus, minus)
        scale = protocol.scale_of(roster.limit * (1 + SLACK), len(roster.masks))
        total = protocol.from_words(words, scale)
        most = sum(self.bounds[name] for name in self.survivors)
        rounding = len(self.survivors) * math.sqrt(len(total)) / scale
        if not norm(total) <= most * (1 + SLACK) + rounding:
            raise ImpossibleSumError(
                f"the sum has norm {norm(total):.6g}: at most {most:g} is possible, so a client ignored its bound"
            )
        return total

    def _take_keys(self, message: Keys) -> None:
        if self._roster is not None:
            return
        for key in (message.masks, message.shares):  # one bad key in the roster would stop everybody
            protocol.agree(X25519PrivateKey.generate(), key, "check")
        known = [keys for keys in self._keys.values() if keys.client != message.client]
        keys = [bytes.fromhex(key) for given in (*known, message) for key in (given.masks, given.shares)]
        if len(set(keys)) < len(keys):
            raise InputError(f"client {message.client!r} sent a key twice, or that of another client")
        self._keys.setdefault(message.client, message)

    def _take_shares(self, message: Shares) -> None:
        if self._roster is None or self._shared:
            return
        name, everybody = message.client, set(self._roster.masks)
        if name not in everybody or set(message.sealed) != everybody - {name} or set(message.digests) != everybody:
            raise InputError(f"client {name!r} must send one share to each other client of the roster")
        protocol.unhex(message.commitment, protocol.SECRET_BYTES, f"commitment of client {name!r}")
        for values, length in ((message.sealed, protocol.SEALED_BYTES), (message.digests, 2 * protocol.DIGEST_BYTES)):
            for value in values.values():
                protocol.unhex(value, length, f"share of client {name!r}")
        self._shares.setdefault(name, message)

    def _take_complaint(self, message: Complaint) -> None:
        name, accused = message.client, set(message.accused)
        if self._request is not None or not self._shared or name in self._answered:
            return
        if name not in self._shares or not accused or not accused <= set(self._shares) - {name}:
            raise InputError(f"complaint of client {name!r} names nobody who sent it shares")
        self._complaints.setdefault(name, accused)

    def _take_masked(self, message: Masked) -> None:
        name = message.client
        if self._request is not None or not self._shared or name in self._answered:
            return
        if name not in self._shares or message.words.shape != self._words.shape:
            raise InputError(
                f"vector of client {name!r} must have {len(self._words)} numbers and come after its shares: "
                f"got {len(message.words)}"
            )
        self._words += message.words
        self._answered.add(name)

    def _take_reveal(self, message: Reveal) -> None:
        """Count a client's shares if they are those that their owners published; else name the client."""
        name = message.client
        if self._request is None or name not in self._answered or name in self._reveals:
            return
        if set(message.seeds) != self._answered or set(message.keys) != set(self._shares) - self._answered:
            self.blame(name, "revealed shares of other clients than it was asked for")
            return
        for shares, part in ((message.seeds, 0), (message.keys, 1)):
            for owner, share in shares.items():
                length = 2 * protocol.DIGEST_BYTES  # in hexadecimal
                digest = self._shares[owner].digests[name][length * part :][:length]
                try:
                    right = protocol.share_digest(protocol.unhex(share, protocol.SHARE_BYTES, "share")) == digest
                except InputError:
                    right = False
                if not right:
                    self.blame(name, f"revealed a wrong share of client {owner!r}")
                    return
        self._reveals[name] = message

    def _judge(self) -> None:
        """Find out from the complaints whose shares are wrong.

        A client in several complaints sent wrong shares, or complains without cause. With a single one nobody can tell:
        the sum goes on without the client that complained, or without both if too few are left.
        """
        pairs = {frozenset((name, peer)) for name, accused in self._complaints.items() for peer in accused}
        guilty = []
        while pairs:
            counts = {name: sum(name in pair for pair in pairs) for name in sorted(set().union(*pairs))}
            worst = max(counts, key=lambda name: counts[name])
            if counts[worst] == 1:
                break
            self.blame(worst, f"sent shares that {counts[worst]} clients can't use, or complained of theirs")
            guilty.append(worst)
            pairs = {pair for pair in pairs if worst not in pair}
        if guilty:
            raise InputError(f"shares are wrong: {', '.join(map(repr, guilty))} must be left out")
        if len(self._answered) < self.threshold:
            for first, second in (order for pair in pairs for order in permutations(sorted(pair))):
                self.blame(first, f"and {second!r}: one sent wrong shares to the other, or complained without cause")

    def _secret(self, name: str, what: str) -> bytes:
        """Return a client's secret ("seeds" or "keys"); if the shares that it published do not give it, name it."""
        points = {peer: point for point, peer in enumerate(self.roster().masks, 1)}
        shares = {
            points[sender]: bytes.fromhex(getattr(self._reveals[sender], what)[name])
            for sender in sorted(self._reveals)[: self.threshold]
        }
        try:
            secret = protocol.join(shares)
            if what == "seeds":
                right = protocol.commitment(secret) == self._shares[name].commitment.lower()
            else:
                right = protocol.public_key(secret) == self._keys[name].masks.lower()
        except InputError:
            right = False
        if not right:
            self.blame(name, f"sent shares that do not give its {what[:-1]}")
            raise InputError(f"shares of client {name!r} do not give its {what[:-1]}: it must be left out")
        return secret

    def _enough(self, count: int, what: str) -> None:
        if count < self.threshold:
            raise ThresholdError(f"{count} clients {what}: the threshold is {self.threshold}, so there is no sum")


def coarse(bounds: Mapping[str, float], dimension: int) -> dict[str, str]:
    """Return the clients, and why, whose bound is so large that the vectors of the others would be rounded away.

    >>> list(coarse({"a": 5.0, "b": 5.0, "c": 2.0**38}, 4096))
    ['c']
    """
    rest, found = dict(bounds), dict[str, str]()
    while len(rest) > 1:
        largest, usual = max(rest, key=lambda name: rest[name]), median_low(rest.values())
        rounding = math.sqrt(dimension) / 2 / protocol.scale_of(sum(rest.values()), len(rest))
        if rounding <= COARSE * usual or rest[largest] <= usual:
            break
        found[largest] = (
            f"client {largest!r} has a bound of {rest[largest]:g}, the median is {usual:g}: in fixed point the vectors "
            "of the others would be rounded away"
        )
        del rest[largest]
    return found
