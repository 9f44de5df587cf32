"""Masks that depend on (view, sample) and on nothing else: not on batch, padding, order or process.

Every position of every sample gets its own 64-bit number from a mixing function of (view, sample, position); the
positions with the smallest numbers are masked. So there is no generator whose state could be at another point.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Words = NDArray[np.uint64]
EVALUATION = 2**63  # the view of evaluation, the same in all runs; no training draws it
IGNORED = -100  # the label of a place that carries no loss


@dataclass(frozen=True)
class Masked:
    """A masked batch: the ids to show, and for each masked place its position and the id to guess, padded with -100."""

    ids: Ints
    positions: Ints
    targets: Ints


def _mixed(words: Words) -> Words:
    """Mix the bits of 64-bit numbers (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def draws(view: int, samples: Words, positions: int, purpose: int) -> Words:
    """Return a 64-bit number for each sample and position: (n, positions)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = np.zeros(1, dtype=np.uint64)
    for word in (0, view % 2**64, purpose):
        state = _mixed((state + golden) ^ np.uint64(word))
    rows = _mixed(state + golden ^ samples)
    return _mixed(rows[:, None] + golden * np.arange(1, positions + 1, dtype=np.uint64))


def mask(ids: Ints, allowed: Bools, samples: Words, *, view: int, share: float, mask_id: int, words: range) -> Masked:
    """Mask `share` of the allowed positions of each row, at least one where there is one.

    As in BERT, of the masked places 80 % show the mask, 10 % a random piece out of `words` and 10 % the piece itself.

    >>> ids = np.arange(10, 22).reshape(2, 6)
    >>> shown = mask(ids, np.ones((2, 6), bool), np.array([1, 2], np.uint64), view=0, share=0.3, mask_id=4,
    ...              words=range(5, 30))
    >>> shown.positions.shape, (np.take_along_axis(ids, shown.positions, 1) == shown.targets).all()
    ((2, 2), np.True_)
    """
    n, width = ids.shape
    number = allowed.sum(axis=1)
    counts = np.where(number > 0, np.maximum(1, np.floor(share * number + 0.5)), 0).astype(np.int64)
    keys = draws(view, samples, width, 1)
    keys[~allowed] = np.uint64(2**64 - 1)
    most = int(counts.max(initial=0))
    chosen = np.argsort(keys, axis=1, kind="stable")[:, :most]
    real = np.arange(most) < counts[:, None]
    positions = np.sort(np.where(real, chosen, width), axis=1)
    real = positions < width
    positions = np.where(real, positions, 0)
    targets = np.where(real, np.take_along_axis(ids, positions, axis=1), IGNORED)
    kinds = np.take_along_axis(draws(view, samples, width, 2), positions, axis=1) % np.uint64(10)
    others = np.take_along_axis(draws(view, samples, width, 3), positions, axis=1) % np.uint64(len(words))
    shown = np.where(kinds < 8, mask_id, np.where(kinds == 8, others.astype(np.int64) + words.start, targets))
    result = ids.copy()
    rows = np.broadcast_to(np.arange(n)[:, None], positions.shape)
    result[rows[real], positions[real]] = shown[real]
    return Masked(result, positions, targets)
