"""Masks: key agreement, key derivation and key stream, all from `cryptography`; fixed point modulo 2^32.

A vector v of norm at most B becomes round(v · s) modulo 2^32 with s = (2^31 − 1 − n) / Σ B over the n clients: every
entry of the sum is then below 2^31 in size, so it cannot overflow, and its error is below n / 2s.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from coreplay.errors import InputError

Words = NDArray[np.uint32]

CHUNK = 2**16  # numbers at a time: the key streams of all peers are added while a piece is in the cache


def agree(private: X25519PrivateKey, public: bytes, purpose: str) -> bytes:
    """Return the 32-byte key that the holders of the two keys share for one purpose."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise InputError("a public key is not one: X25519 refuses it") from None
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
    room = buffer.data
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        length = 4 * len(part)
        for stream, combine in streams:
            stream.update_into(zeros[:length], room)
            combine(part, buffer[:length].view("<u4"), out=part)


def _stream(key: bytes) -> Any:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
