"""Shamir's secret sharing: any `threshold` of the shares give the secret, fewer say nothing about it.

The secret is the value at 0 of a random polynomial of degree threshold − 1 over the integers modulo the Mersenne prime
2^521 − 1; a share is its value at one more point. Secrets of 32 bytes fit with room to spare.
"""

import secrets
from collections.abc import Iterable, Mapping

from coreplay.errors import InputError

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


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
            raise InputError(f"share {place} is not one: it has {len(share)} bytes")
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
