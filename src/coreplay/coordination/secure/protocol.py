"""Messages and cryptography of a secure sum.

Messages, in this order: keys, roster, shares, inbox, masked or complaint, request, reveal.

Masks are key streams added modulo 2^32. In fixed point a vector v of norm at most B is round(v · s) modulo 2^32 with
s = (2^31 − 1 − n) / Σ B over the n clients: every entry of the sum is then below 2^31 in size, so it cannot overflow,
and its error is below n / 2s.

Secrets are split by Shamir's scheme: any `threshold` of the shares give the secret, fewer say nothing about it. The
secret is the value at 0 of a random polynomial of degree threshold − 1 over the integers modulo the Mersenne prime
2^521 − 1; a share is its value at another point.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from coreplay.coordination.messages import CHUNK, Message, chunks
from coreplay.errors import InputError

Words = NDArray[np.uint32]

PRIME = 2**521 - 1
SECRET_BYTES = 32  # of a key, of a seed and of the digest of a seed
SHARE_BYTES = 66
SEALED_BYTES = 2 * SHARE_BYTES + 16
DIGEST_BYTES = 16  # of one share


@dataclass(frozen=True, eq=False)
class SecureMessage(Message):
    """A message of one secure sum."""

    def __post_init__(self) -> None:
        """Check the fields: a message may come from anyone."""
        super().__post_init__()
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            texts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
            if not all(isinstance(text, str) for text in texts):
                raise InputError(f"{self.kind()} has {name} that is not a {type(value).__name__} of texts")


@dataclass(frozen=True, eq=False)
class Keys(SecureMessage):
    """A client's two public keys of this sum, for masks and for sealing shares (hexadecimal)."""

    client: str
    masks: str
    shares: str


@dataclass(frozen=True, eq=False)
class Roster(SecureMessage):
    """All clients' public keys, the threshold, and the sum of the clients' norm bounds."""

    threshold: int
    limit: float
    masks: dict[str, str]
    shares: dict[str, str]


@dataclass(frozen=True, eq=False)
class Shares(SecureMessage):
    """A client's secrets in shares, each sealed for one other client, and digests to check them.

    `commitment` is the digest of the seed of its own mask, `digests` has those of the two shares of each client.
    """

    client: str
    commitment: str
    sealed: dict[str, str]
    digests: dict[str, str]


@dataclass(frozen=True, eq=False)
class Inbox(SecureMessage):
    """The sealed shares that the others sent to one client, and the digests that they published of them."""

    client: str
    sealed: dict[str, str]
    digests: dict[str, str]


@dataclass(frozen=True, eq=False)
class Complaint(SecureMessage):
    """Whose shares a client could not open, or do not have the published digests: it sends no vector."""

    client: str
    accused: list[str]


@dataclass(frozen=True, eq=False)
class Masked(SecureMessage):
    """A client's vector in fixed point under all its masks."""

    client: str
    words: Words


@dataclass(frozen=True, eq=False)
class Request(SecureMessage):
    """Whose vectors the server has: it needs the seeds of their own masks, and the pairwise keys of the others."""

    survivors: list[str]


@dataclass(frozen=True, eq=False)
class Reveal(SecureMessage):
    """A client's shares of the seeds of those who answered and of the keys of those who did not."""

    client: str
    seeds: dict[str, str]
    keys: dict[str, str]


def unhex(value: str, length: int, what: str) -> bytes:
    """Read hexadecimal digits of a message."""
    try:
        data = bytes.fromhex(value)
    except ValueError:
        raise InputError(f"{what} must be hexadecimal: got {value[:40]!r}") from None
    if len(data) != length:
        raise InputError(f"{what} must have {length} bytes: got {len(data)}")
    return data


def agree(private: X25519PrivateKey, public: str, *purpose: Any) -> bytes:
    """Return the 32-byte key that the holders of the two keys share for one purpose."""
    key = unhex(public, SECRET_BYTES, "public key")
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        raise InputError("a public key is invalid: X25519 refuses it") from None
    info = "\0".join(["coreplay", *map(str, purpose)]).encode()
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def pair_key(private: X25519PrivateKey, roster: Roster, owner: str, peer: str) -> bytes:
    """Return the key of the mask between two clients, from the private key of the first."""
    return agree(private, roster.masks[peer], "masks", *roster.stamp, *sorted((owner, peer)))


def public_key(private: bytes) -> str:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw().hex()


def commitment(seed: bytes) -> str:
    """Return the digest by which a seed joined from shares is checked."""
    return hashlib.sha256(b"coreplay seed" + seed).hexdigest()


def share_digest(share: bytes) -> str:
    """Return the digest of a share, by which a revealed share is checked; 521 random bits cannot be guessed from it."""
    return hashlib.blake2b(share, digest_size=DIGEST_BYTES, person=b"coreplay share").hexdigest()


def pair_digest(pair: bytes) -> str:
    """Return the digests of a share of a seed and of the share of a key after it."""
    return share_digest(pair[:SHARE_BYTES]) + share_digest(pair[SHARE_BYTES:])


def scale_of(limit: float, clients: int) -> float:
    """Return s for a sum of norms of at most `limit`."""
    return (2**31 - 1 - clients) / limit


def to_words(vector: NDArray[Any], scale: float) -> Words:
    """Return a vector in fixed point.

    >>> from_words(to_words(np.array([0.5, -0.25]), 1e6), 1e6).tolist()
    [0.5, -0.25]
    """
    words = np.empty(len(vector), dtype=np.uint32)
    for chunk in chunks(vector):
        part = vector[chunk].astype(np.float64)
        part *= scale
        words[chunk] = np.rint(part, out=part).astype(np.int32).view(np.uint32)
    return words


def from_words(words: Words, scale: float) -> NDArray[np.float32]:
    """Return the numbers of a sum in fixed point."""
    out = np.empty(len(words), dtype=np.float32)
    for chunk in chunks(words):
        out[chunk] = words[chunk].view(np.int32) / scale
    return out


def add_masks(words: Words, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
    """Add and subtract the key streams of these keys, in place, modulo 2^32. A key is used once, so the nonce is 0."""
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    zeros = memoryview(bytes(4 * CHUNK))
    buffer = np.zeros(4 * CHUNK + 16, dtype=np.uint8)
    for chunk in chunks(words):
        part = words[chunk]
        length = 4 * len(part)
        for stream, combine in streams:
            stream.update_into(zeros[:length], buffer.data)
            combine(part, buffer[:length].view("<u4"), out=part)


def _stream(key: bytes) -> Any:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return the shares of the points 1 … `count`, of which any `threshold` give the secret.

    >>> shares = split(b"s" * 32, 2, 3)
    >>> join({1: shares[0], 3: shares[2]})[:3]
    b'sss'
    """
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for point in range(1, count + 1):
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of at least `threshold` shares; shares that do not belong together are an `InputError`."""
    total = 0
    for point, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        total = (total + int.from_bytes(share, "big") * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2 ** (8 * SECRET_BYTES):
        raise InputError(f"{len(shares)} shares do not give a secret: too few, or some of them are wrong")
    return total.to_bytes(SECRET_BYTES, "big")
