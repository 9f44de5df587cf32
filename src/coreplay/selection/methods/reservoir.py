"""Reservoir sampling (Vitter 1985): each sample seen so far has the same chance to be in the buffer."""

import numpy as np

from coreplay.array_types import Ints
from coreplay.errors import InputError
from coreplay.selection.api import selector
from coreplay.selection.pool import Pool


@selector("reservoir")
def reservoir(pool: Pool, budget: int, rng: np.random.Generator) -> Ints:
    """Let new samples replace kept ones, one by one, with probability budget / seen so far (needs new=, seen=)."""
    new, old = pool.split()
    if pool.seen is None:
        raise InputError("method 'reservoir' needs to know how many samples were seen in earlier periods: pass seen=")
    kept = list(old)
    rng.shuffle(kept)
    kept = kept[:budget]  # a smaller budget than before
    for number, sample in enumerate(rng.permutation(new), start=max(pool.seen, len(kept)) + 1):
        if len(kept) < budget:
            kept.append(sample)
        elif rng.random() < budget / number:
            kept[rng.integers(budget)] = sample
    return np.array(kept, dtype=np.int64)
