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

import secrets
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from coreplay.coordination.messages import SLACK, Stamp, norm
from coreplay.coordination.secure import protocol
from coreplay.coordination.secure.protocol import Complaint, Inbox, Keys, Masked, Request, Reveal, Roster, Shares
from coreplay.errors import InputError

HALF = protocol.SHARE_BYTES  # of a pair of shares: first that of the seed, then that of the key
NONCE = bytes(12)  # every sealing key seals one message only


@dataclass(frozen=True, eq=False)
class SecureState(protocol.SecureMessage):
    """Everything that a client knows of a sum, secrets included (hexadecimal)."""

    client: str
    bound: float
    secrets: list[str]
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
        self._held: dict[str, bytes] = {}  # pairs of shares: its own once it has shared, the others' once it has masked
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
        if not max(len(names) // 2, 1) < roster.threshold <= len(names):
            raise InputError(
                f"threshold must be at least 2 and more than half of {len(names)} clients: got {roster.threshold} "
                "(else the server could ask two halves for different secrets)"
            )
        if not self.bound <= roster.limit < float("inf"):
            raise InputError(f"limit must be at least this client's bound {self.bound:g}: got {roster.limit}")
        seeds = protocol.split(self._seed, roster.threshold, len(names))
        keys = protocol.split(self._mask_key.private_bytes_raw(), roster.threshold, len(names))
        sealed, digests = {}, {}
        for peer, seed, key in zip(names, seeds, keys, strict=True):
            digests[peer] = protocol.pair_digest(seed + key)
            if peer == self.name:
                self._held[peer] = seed + key
            else:
                sealing = AESGCM(self._sealing_key(roster, self.name, peer))
                sealed[peer] = sealing.encrypt(NONCE, seed + key, None).hex()
        self._roster = roster
        return Shares(*self._stamp, self.name, protocol.commitment(self._seed), sealed, digests)

    def mask(self, vector: NDArray[Any], inbox: Inbox) -> Masked | Complaint:
        """Return the vector, masked with all who sent shares; a complaint if some of these are wrong."""
        roster = self._shared(inbox)
        if len(self._held) > 1:
            raise InputError(f"client {self.name!r} has sent its vector of this sum already: a second one is refused")
        peers = sorted(inbox.sealed)
        if inbox.client != self.name or not set(peers) < set(roster.masks) or self.name in peers:
            raise InputError(f"inbox is not one for client {self.name!r} and this roster")
        if len(peers) + 1 < roster.threshold:
            raise InputError(f"shares of {len(peers) + 1} clients are too few: the threshold is {roster.threshold}")
        length = norm(vector)
        if not length <= self.bound * (1 + SLACK):
            raise InputError(f"vector of client {self.name!r} has norm {length:.6g}: at most {self.bound:g} is allowed")
        opened = {peer: self._open(roster, peer, inbox) for peer in peers}
        held = {peer: pair for peer, pair in opened.items() if pair is not None}
        if len(held) < len(peers):
            return Complaint(*self._stamp, self.name, [peer for peer in peers if peer not in held])
        words = protocol.to_words(vector, protocol.scale_of(roster.limit * (1 + SLACK), len(roster.masks)))
        plus, minus = [self._seed], list[bytes]()
        for peer in peers:
            key = protocol.pair_key(self._mask_key, roster, self.name, peer)
            (plus if self.name < peer else minus).append(key)
        protocol.add_masks(words, plus, minus)
        self._held |= held
        return Masked(*self._stamp, self.name, words)

    def reveal(self, request: Request) -> Reveal:
        """Return the shares that the server needs, once, and of each client only one of its two secrets."""
        roster = self._shared(request)
        survivors = set(request.survivors)
        if self._revealed:
            raise InputError(f"client {self.name!r} has answered a request of this sum already: a second is refused")
        if not survivors <= set(self._held):
            raise InputError("request names survivors who were not in this sum")
        if len(survivors) < roster.threshold:
            raise InputError(f"request names {len(survivors)} survivors: the threshold is {roster.threshold}")
        self._revealed = True
        seeds = {peer: pair[:HALF].hex() for peer, pair in self._held.items() if peer in survivors}
        keys = {peer: pair[HALF:].hex() for peer, pair in self._held.items() if peer not in survivors}
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
        keys = (key.private_bytes_raw() for key in (self._mask_key, self._share_key))
        known = [secret.hex() for secret in (*keys, self._seed)]
        held = {peer: pair.hex() for peer, pair in self._held.items()}
        roster = b"" if self._roster is None else self._roster.to_bytes()
        about = (*self._stamp, self.name, float(self.bound))
        return SecureState(*about, known, held, self._revealed, roster).to_bytes()

    @classmethod
    def from_state(cls, state: bytes) -> "SecureClient":
        """Continue from a `state()`."""
        found = SecureState.from_bytes(state)
        client = cls(found.client, found.stamp, bound=found.bound)
        masks, shares, client._seed = map(bytes.fromhex, found.secrets)
        client._mask_key, client._share_key = map(X25519PrivateKey.from_private_bytes, (masks, shares))
        client._held = {peer: bytes.fromhex(pair) for peer, pair in found.held.items()}
        client._revealed = found.revealed
        client._roster = Roster.from_bytes(found.roster) if found.roster else None
        return client

    def _check(self, message: protocol.SecureMessage) -> None:
        if message.stamp != self._stamp:
            raise InputError(f"{message.kind()} is of {message.stamp}: client {self.name!r} is in {self._stamp}")

    def _shared(self, message: protocol.SecureMessage) -> Roster:
        self._check(message)
        if self._roster is None:
            raise InputError(f"client {self.name!r} has not shared its secrets yet: {message.kind()} comes too early")
        return self._roster

    def _open(self, roster: Roster, peer: str, inbox: Inbox) -> bytes | None:
        """Return the shares that a peer sent; None if they are not what it published."""
        opening = AESGCM(self._sealing_key(roster, peer, self.name))
        try:
            sealed = protocol.unhex(inbox.sealed[peer], protocol.SEALED_BYTES, "sealed share")
            pair = opening.decrypt(NONCE, sealed, None)
        except (InvalidTag, InputError):
            return None
        return pair if protocol.pair_digest(pair) == inbox.digests.get(peer) else None

    def _sealing_key(self, roster: Roster, sender: str, receiver: str) -> bytes:
        other = receiver if sender == self.name else sender
        return protocol.agree(self._share_key, roster.shares[other], "shares", *roster.stamp, sender, receiver)
