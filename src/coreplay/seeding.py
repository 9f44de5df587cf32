"""Every random choice comes from a generator derived from (seed, client, period, purpose).

So results do not depend on the number of workers or on the order in which clients answer.
"""

import hashlib

import numpy as np


def generator(seed: int, *keys: int | str) -> np.random.Generator:
    """Return the generator for this seed and these keys: always the same one, unlike any other.

    >>> bool(generator(0, "alice", 3).integers(100) == generator(0, "alice", 3).integers(100))
    True
    """
    words = [seed, *keys]
    text = "\0".join(f"{type(word).__name__[0]}{word}" for word in words)
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest, "big")))
