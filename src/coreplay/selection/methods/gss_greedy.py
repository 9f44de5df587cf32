"""GSS greedy (Aljundi et al. 2019), sample by sample: a stream in random order against scores that are never refreshed.

The original decides per mini-batch with mean gradients as references; here the batch size is 1 and references are
single samples. Scores are cosines + 1, so that they lie in [0, 2].
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from coreplay.selection.api import selector
from coreplay.selection.pool import Pool, whole_number

Ints = NDArray[np.int64]
FIRST_SCORE = 0.1  # of the very first sample, which has nothing to be compared with


@njit(cache=True)
def _closest(
    K: NDArray[np.float64], buffer: Ints, count: int, sample: int, draws: int, rng: np.random.Generator
) -> float:
    """Return the largest cosine of the sample to up to `draws` random samples of the buffer."""
    order = buffer[:count].copy()
    closest = -1.0
    for k in range(min(draws, count)):
        pick = k + int(rng.random() * (count - k))
        order[k], order[pick] = order[pick], order[k]
        closest = max(closest, K[sample, order[k]])
    return closest


@njit(cache=True)
def _greedy(K: NDArray[np.float64], stream: Ints, budget: int, references: int, rng: np.random.Generator) -> Ints:
    buffer = stream[:budget].copy()
    scores = np.empty(budget)
    for place in range(stream.size):
        sample = stream[place]
        count = min(place, budget)
        cosine = _closest(K, buffer, count, sample, references, rng)
        score = FIRST_SCORE if place == 0 else cosine + 1.0
        if place < budget:
            scores[place] = score
            continue
        if cosine >= 0.0:
            continue
        total = scores.sum()
        threshold = rng.random() * total
        candidate = 0 if total > 0.0 else int(rng.random() * budget)
        while total > 0.0 and candidate < budget - 1 and threshold >= scores[candidate]:
            threshold -= scores[candidate]
            candidate += 1
        rivals = scores[candidate] + score
        if rng.random() * rivals < scores[candidate]:
            buffer[candidate], scores[candidate] = sample, score
    return buffer


@selector("gss_greedy")
def gss_greedy(pool: Pool, budget: int, rng: np.random.Generator, *, references: int = 10) -> Ints:
    """Stream the pool in random order and replace similar samples at random, as GSS greedy does."""
    references = whole_number(references, "references", least=1)
    return np.asarray(_greedy(pool.gram, rng.permutation(pool.size), budget, references, rng))
