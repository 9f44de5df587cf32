"""Messages and cryptography of a secure sum.

Messages, in this order: keys, roster, shares, inbox, masked or complaint, request, reveal.

Masks are key streams added modulo 2^32. In fixed point a vector v of norm at most B is round(v · s) modulo 2^32 with
s = (2^31 − 1 − n) / Σ B over the n clients: every entry of the sum is then below 2^31 in size, so it cannot overflow,
and its error is below n / 2s.

Secrets are split by Shamir's scheme: any `threshold` of the shares give the secret, fewer say nothing about it. The
secret is the value at 0 of a random polynomial of degree threshold − 1 over the integers modulo the Mersenne prime
2^521 − 1; a share is its value at another point.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from coreplay.coordination.messages import Message
from coreplay.errors import InputError

Words = NDArray[np.uint32]

CHUNK = 2**16  # numbers at a time: the key streams of all peers are added while a piece is in the cache
PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


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
    digests: dict[str, str] = field(default_factory=dict)


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


def unhex(value: Any, length: int, what: str) -> bytes:
    """Read hexadecimal digits of a message."""
    try:
        data = bytes.fromhex(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be hexadecimal: got {str(value)[:40]!r}") from None
    if len(data) != length:
        raise InputError(f"{what} must have {length} bytes: got {len(data)}")
    return data


def agree(private: X25519PrivateKey, public: bytes, purpose: str) -> bytes:
    """Return the 32-byte key that the holders of the two keys share for one purpose."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise InputError("a public key is invalid: X25519 refuses it") from None
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=purpose.encode()).derive(secret)


def scale_of(limit: float, clients: int) -> float:
    """Return s for a sum of norms of at most `limit`."""
    return (2**31 - 1 - clients) / limit


def to_words(vector: NDArray[Any], scale: float) -> Words:
    """Return a vector in fixed point.

    >>> from_words(to_words(np.array([0.5, -0.25]), 1e6), 1e6).tolist()
    [0.5, -0.25]
    """
    words = np.empty(len(vector), dtype=np.uint32)
    for start in range(0, len(vector), CHUNK):
        part = vector[start : start + CHUNK].astype(np.float64)
        part *= scale
        words[start : start + CHUNK] = np.rint(part, out=part).astype(np.int32).view(np.uint32)
    return words


def from_words(words: Words, scale: float) -> NDArray[np.float32]:
    """Return the numbers of a sum in fixed point."""
    out = np.empty(len(words), dtype=np.float32)
    for start in range(0, len(words), CHUNK):
        out[start : start + CHUNK] = words[start : start + CHUNK].view(np.int32) / scale
    return out


def add_masks(words: Words, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
    """Add and subtract the key streams of these keys, in place, modulo 2^32. A key is used once, so the nonce is 0."""
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    zeros = memoryview(bytes(4 * CHUNK))
    buffer = np.zeros(4 * CHUNK + 16, dtype=np.uint8)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        length = 4 * len(part)
        for stream, combine in streams:
            stream.update_into(zeros[:length], buffer.data)
            combine(part, buffer[:length].view("<u4"), out=part)


def _stream(key: bytes) -> Any:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def split(secret: bytes, threshold: int, points: Iterable[int]) -> dict[int, bytes]:
    """Return one share for each point (distinct whole numbers from 1).

    >>> shares = split(b"s" * 32, 2, [1, 2, 3])
    >>> join({1: shares[1], 3: shares[3]})[:3]
    b'sss'
    """
    if len(secret) != SECRET_BYTES:
        raise InputError(f"a secret has {SECRET_BYTES} bytes: got {len(secret)}")
    places = list(points)
    if len(set(places)) != len(places) or any(not 0 < place < PRIME for place in places):
        raise InputError("points must be distinct whole numbers from 1")
    if not 1 <= threshold <= len(places):
        raise InputError(f"threshold must be from 1 to the {len(places)} shares: got {threshold}")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {place: _value(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in places}


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of at least `threshold` shares; shares that do not belong together are an `InputError`."""
    total = 0
    for place, share in shares.items():
        value = int.from_bytes(share, "big")
        if len(share) != SHARE_BYTES or value >= PRIME:
            raise InputError(f"share {place} is not valid: it has {len(share)} bytes")
        above, below = 1, 1
        for other in shares:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        total = (total + value * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2 ** (8 * SECRET_BYTES):
        raise InputError(f"{len(shares)} shares do not give a secret: too few, or some of them are wrong")
    return total.to_bytes(SECRET_BYTES, "big")


def _value(polynomial: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % PRIME
    return value
