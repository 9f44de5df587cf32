"""Jensen-Shannon divergence of word counts, in bits: 0 for equal distributions, 1 for disjoint ones.

JS(P, Q) = ½ KL(P ‖ M) + ½ KL(Q ‖ M) with M = ½(P + Q). Where P has no word, Q's part is ½ q, so the divergence of a
client to all others costs no more than the client's own words.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial.distance import jensenshannon

Floats = NDArray[np.float64]


def jensen_shannon(p: Floats, q: Floats) -> float:
    """Return the divergence of two vectors of counts; 0 if one is empty.

    >>> float(jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 3.0])))
    1.0
    """
    if not p.sum() or not q.sum():
        return 0.0
    return float(jensenshannon(p, q, base=2)) ** 2


def between_rows(counts: Floats) -> Floats:
    """Return the divergences of all pairs of rows."""
    n = len(counts)
    table = np.zeros((n, n))
    for a in range(n):
        for b in range(a):
            table[a, b] = table[b, a] = jensen_shannon(counts[a], counts[b])
    return table


def to_the_rest(counts: csr_array) -> Floats:
    """Return the divergence of each row to the sum of all other rows (NaN where there is none)."""
    total = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel()
    everything = total.sum()
    result = np.full(counts.shape[0], np.nan)
    for k in range(counts.shape[0]):
        cells = slice(counts.indptr[k], counts.indptr[k + 1])
        own = counts.data[cells].astype(np.float64)
        size = own.sum()
        if not 0 < size < everything:
            continue
        p = own / size
        q = (total[counts.indices[cells]] - own) / (everything - size)
        m = (p + q) / 2
        some = q > 0
        kl_q = np.sum(q[some] * np.log2(q[some] / m[some])) + (1 - q.sum())
        result[k] = max(0.0, (np.sum(p * np.log2(p / m)) + kl_q) / 2)
    return result
