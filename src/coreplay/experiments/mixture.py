"""The random Gaussian mixture of the paper's appendix C.1, taken literally and without its normalisations.

Literal: centres and samples are each shifted and scaled so that every coordinate has mean 0 and standard deviation 1,
over the centres and over the samples. (One centre alone has no deviation: it becomes 0.) The sum of all samples is then
0, so that x ∝ ‖g_i‖ solves the convex relaxation with value 0 and says nothing about which samples differ.
Uncentred: the same draws without either normalisation.
"""

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import unknown

Floats = NDArray[np.float64]

MIXTURES = {
    "literal": "centres and samples normalised per coordinate, as the appendix says",
    "uncentred": "no normalisation",
}


def draw(rng: np.random.Generator, n: int, mixture: str, *, dimension: int = 300) -> Floats:
    """Draw the gradients of one client: n rows of `dimension` numbers.

    >>> rows = draw(np.random.default_rng(0), 4, "literal", dimension=3)
    >>> rows.shape, bool(abs(rows.mean(axis=0)).max() < 1e-12)
    ((4, 3), True)
    """
    if mixture not in MIXTURES:
        raise unknown("mixture", mixture, MIXTURES)
    literal = mixture == "literal"
    centres = rng.normal(size=(rng.poisson(4) + 1, dimension))
    if literal:
        centres = _normalise(centres)
    weights = rng.dirichlet(np.ones(len(centres)))
    samples = centres[rng.choice(len(centres), size=n, p=weights)] + rng.normal(size=(n, dimension))
    return _normalise(samples) if literal else samples


def _normalise(rows: Floats) -> Floats:
    """Give each column mean 0 and standard deviation 1 (or leave it at 0 if it has no deviation)."""
    centred: Floats = rows - rows.mean(axis=0)
    deviation = centred.std(axis=0)
    centred /= np.where(deviation > 0, deviation, 1)
    return centred
