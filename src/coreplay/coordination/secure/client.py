"""The client half of a secure sum: advertise, share, mask, reveal.

    advertise()                  → keys
    share(roster)                → shares, sealed for each other client
    mask(vector, inbox)          → the masked vector, or a complaint about those whose shares are wrong
    reveal(request)              → shares of what the server needs to take the masks off the sum

`answer` does the last three from bytes to bytes.

A client has two kinds of mask (Bonawitz et al. 2017): one with each other client, which cancel in the sum, and its own.
For each client the others give the server *either* the key of the pairwise masks (it dropped out) *or* the seed of its
own mask (it answered), never both: a vector that arrives after its sender was taken for dropped out stays hidden. All
secrets are fresh for every sum: what is revealed in one round opens nothing of another.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from coreplay.coordination.messages import Stamp
from coreplay.coordination.secure.protocol import (
    SHARE_BYTES,
    Complaint,
    Inbox,
    Keys,
    Masked,
    Request,
    Reveal,
    Roster,
    SecureMessage,
    Shares,
    add_masks,
    agree,
    scale_of,
    split,
    to_words,
    unhex,
)
from coreplay.coordination.total import norm
from coreplay.errors import InputError

SLACK = 1e-3
NONCE = bytes(12)  # every sealing key seals one message only
SEALED_BYTES = 2 * SHARE_BYTES + 16
DIGEST_BYTES = 16  # of one share


@dataclass(frozen=True, eq=False)
class SecureState(SecureMessage):
    """Everything that a client knows of a sum, secrets included (hexadecimal)."""

    client: str
    bound: float
    secrets: list[str]
    own: str
    held: dict[str, str]
    revealed: bool
    roster: bytes


class SecureClient:
    """One client's part in one secure sum.

    Parameters
    ----------
    name : str
        Name of the client.
    stamp : Stamp
        Run, period and round of the sum.
    bound : float
        Largest norm of its vector; a longer one is refused here, since the server cannot see it.
    """

    def __init__(self, name: str, stamp: Stamp, *, bound: float) -> None:
        self.name, self.bound, self._stamp = name, bound, stamp
        self._mask_key, self._share_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(32)
        self._roster: Roster | None = None
        self._own: bytes = b""
        self._held: dict[str, bytes] = {}
        self._revealed = False

    def advertise(self) -> Keys:
        """Return the public keys."""
        masks, shares = (key.public_key().public_bytes_raw().hex() for key in (self._mask_key, self._share_key))
        return Keys(*self._stamp, self.name, masks, shares)

    def share(self, roster: Roster) -> Shares:
        """Split both secrets into shares and seal one pair for each other client."""
        self._check(roster)
        if self._roster is not None:
            raise InputError(f"client {self.name!r} has shared its secrets already: a second roster is refused")
        mine, names = self.advertise(), sorted(roster.masks)
        if set(roster.masks) != set(roster.shares) or roster.masks.get(self.name) != mine.masks:
            raise InputError(f"roster does not have the keys of client {self.name!r}")
        if len({*roster.masks.values(), *roster.shares.values()}) < 2 * len(names):
            raise InputError("roster has one key twice: every client needs its own")
        if not len(names) // 2 < roster.threshold <= len(names):
            raise InputError(
                f"threshold must be more than half of {len(names)} clients: got {roster.threshold} "
                "(else the server could ask two halves for different secrets)"
            )
        if not self.bound <= roster.limit < float("inf"):
            raise InputError(f"limit must be at least this client's bound {self.bound:g}: got {roster.limit}")
        points = range(1, len(names) + 1)
        seeds = split(self._seed, roster.threshold, points)
        keys = split(self._mask_key.private_bytes_raw(), roster.threshold, points)
        sealed, digests = {}, {}
        for point, peer in enumerate(names, 1):
            pair = seeds[point] + keys[point]
            digests[peer] = share_digest(seeds[point]) + share_digest(keys[point])
            if peer == self.name:
                self._own = pair
            else:
                key = self._sealing_key(roster, self.name, peer)
                sealed[peer] = AESGCM(key).encrypt(NONCE, pair, None).hex()
        self._roster = roster
        return Shares(*self._stamp, self.name, commitment(self._seed), sealed, digests)

    def mask(self, vector: NDArray[Any], inbox: Inbox) -> Masked | Complaint:
        """Return the vector, masked with all who sent shares; a complaint if some of these are wrong."""
        roster = self._shared(inbox)
        if self._held:
            raise InputError(f"client {self.name!r} has sent its vector of this sum already: a second one is refused")
        peers = set(inbox.sealed)
        if inbox.client != self.name or not peers < set(roster.masks) or self.name in peers:
            raise InputError(f"inbox is not one for client {self.name!r} and this roster")
        if len(peers) + 1 < roster.threshold:
            raise InputError(f"shares of {len(peers) + 1} clients are too few: the threshold is {roster.threshold}")
        length = norm(vector)
        if not length <= self.bound * (1 + SLACK):
            raise InputError(f"vector of client {self.name!r} has norm {length:.6g}: at most {self.bound:g} is allowed")
        opened = {peer: self._open(roster, peer, inbox) for peer in sorted(peers)}
        held = {peer: pair for peer, pair in opened.items() if pair is not None}
        if len(held) < len(peers):
            return Complaint(*self._stamp, self.name, sorted(peers - set(held)))
        words = to_words(vector, scale_of(roster.limit * (1 + SLACK), len(roster.masks)))
        plus, minus = [self._seed], list[bytes]()
        for peer in sorted(peers):
            key = pair_key(self._mask_key, roster, self.name, peer)
            (plus if self.name < peer else minus).append(key)
        add_masks(words, plus, minus)
        self._held = held | {self.name: self._own}
        return Masked(*self._stamp, self.name, words)

    def reveal(self, request: Request) -> Reveal:
        """Return the shares that the server needs, once, and of each client only one of its two secrets."""
        roster = self._shared(request)
        survivors = set(map(str, request.survivors))
        if self._revealed:
            raise InputError(f"client {self.name!r} has answered a request of this sum already: a second is refused")
        if not survivors <= set(self._held):
            raise InputError("request names survivors who were not in this sum")
        if len(survivors) < roster.threshold:
            raise InputError(f"request names {len(survivors)} survivors: the threshold is {roster.threshold}")
        self._revealed = True
        half = SHARE_BYTES
        seeds = {peer: pair[:half].hex() for peer, pair in self._held.items() if peer in survivors}
        keys = {peer: pair[half:].hex() for peer, pair in self._held.items() if peer not in survivors}
        return Reveal(*self._stamp, self.name, seeds, keys)

    def answer(self, step: str, data: bytes, vector: NDArray[Any]) -> bytes:
        """Take the step "share", "mask" or "reveal" on the server's message; only "mask" needs the vector."""
        if step == "share":
            return self.share(Roster.from_bytes(data)).to_bytes()
        if step == "reveal":
            return self.reveal(Request.from_bytes(data)).to_bytes()
        return self.mask(vector, Inbox.from_bytes(data)).to_bytes()

    def state(self) -> bytes:
        """Return everything, secrets included: keep it where only the client can read it, until the sum is done."""
        private = (key.private_bytes_raw() for key in (self._mask_key, self._share_key))
        keys = [key.hex() for key in (*private, self._seed)]
        held = {peer: pair.hex() for peer, pair in self._held.items()}
        roster = b"" if self._roster is None else self._roster.to_bytes()
        known = SecureState(
            *self._stamp, self.name, float(self.bound), keys, self._own.hex(), held, self._revealed, roster
        )
        return known.to_bytes()

    @classmethod
    def from_state(cls, state: bytes) -> "SecureClient":
        """Continue from a `state()`."""
        found = SecureState.from_bytes(state)
        client = cls(found.client, found.stamp, bound=found.bound)
        masks, shares, client._seed = (unhex(secret, 32, "secret") for secret in found.secrets)
        client._mask_key, client._share_key = map(X25519PrivateKey.from_private_bytes, (masks, shares))
        client._own = bytes.fromhex(found.own)
        client._held = {peer: bytes.fromhex(pair) for peer, pair in found.held.items()}
        client._revealed = found.revealed
        client._roster = Roster.from_bytes(found.roster) if found.roster else None
        return client

    def _check(self, message: SecureMessage) -> None:
        if message.stamp != self._stamp:
            raise InputError(f"{message.kind()} is of {message.stamp}: client {self.name!r} is in {self._stamp}")

    def _shared(self, message: SecureMessage) -> Roster:
        self._check(message)
        if self._roster is None:
            raise InputError(f"client {self.name!r} has not shared its secrets yet: {message.kind()} comes too early")
        return self._roster

    def _open(self, roster: Roster, peer: str, inbox: Inbox) -> bytes | None:
        """Return the shares that a peer sent; None if they are not what it published."""
        key = self._sealing_key(roster, peer, self.name)
        try:
            pair = AESGCM(key).decrypt(NONCE, unhex(inbox.sealed[peer], SEALED_BYTES, "sealed share"), None)
        except (InvalidTag, InputError):
            return None
        half = SHARE_BYTES
        return pair if share_digest(pair[:half]) + share_digest(pair[half:]) == inbox.digests.get(peer) else None

    def _sealing_key(self, roster: Roster, sender: str, receiver: str) -> bytes:
        other = receiver if sender == self.name else sender
        public = unhex(roster.shares[other], 32, "public key")
        return agree(self._share_key, public, _purpose("shares", roster, sender, receiver))


def pair_key(private: X25519PrivateKey, roster: Roster, owner: str, peer: str) -> bytes:
    """Return the key of the mask between two clients, from the private key of the first."""
    first, second = sorted((owner, peer))
    return agree(private, unhex(roster.masks[peer], 32, "public key"), _purpose("masks", roster, first, second))


def commitment(seed: bytes) -> str:
    """Return the digest by which a seed joined from shares is checked."""
    return hashlib.sha256(b"coreplay seed" + seed).hexdigest()


def share_digest(share: bytes) -> str:
    """Return the digest of a share, by which a revealed share is checked; 521 random bits cannot be guessed from it."""
    return hashlib.blake2b(share, digest_size=DIGEST_BYTES, person=b"coreplay share").hexdigest()


def _purpose(what: str, roster: Roster, first: str, second: str) -> str:
    return "\0".join(["coreplay", what, roster.run, str(roster.period), str(roster.round), first, second])
