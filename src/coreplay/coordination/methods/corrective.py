"""Damped, fully corrective coordination: far fewer rounds than the alternating step.

The problem is to find the smallest vector in a sum of polytopes, and what can be exchanged is sums. A client answers
the vector y with an integer selection

    x  ≈  argmin κ ‖G(x − x̄)‖² + 2⟨y, Gx⟩,        x̄ = Σ_k w_k x_k its own share of y,

where κ = 1 is the exact best reply to all others, κ = 0 the plain Frank-Wolfe oracle, and a large κ lets only those
move who gain most. With V_k the sum of all answers of round k, the server finds the convex weights

    α = argmin ‖Σ_k α_k V_k‖²

exactly, and goes only a part of the way there from the weights that it sent before:

    y = Σ_k w_k V_k,        w ← (α + t w) / (1 + t).

Why not all the way (t = 0), as Frank-Wolfe would: y plays the part of a price, and what counts in the end is the sum of
the *answers* to it, V(y), not a mixture of earlier answers that nobody can select. At the optimum y* = V(y*), and near
it V is steep: a small error in y is a large one in V(y). The full step is a cutting-plane step in the dual and
oscillates; the damped one settles. And the answers are selections already, so nothing is lost by rounding at the end.

How far is too far depends on what clients have in common, which nobody knows before they have moved. So the first step
is a cautious one for M clients, and then κ follows what the sums show: it rises where the answers to the last broadcast
overshot those before, and else falls:

    κ_1 = M / √(M + 15),  about √M,     t = 0.15 κ_1,
    κ ← κ / 0.75  if ‖V_k‖² > 1.1 ‖V_{k−1}‖²,  else  0.75 κ;     from 1 to 10 κ_1, and in proportion where κ_1 grows.

Where all clients have a direction in common, all would turn at once whatever κ is. So nobody corrects more than a fair
share of y: a client whose reply gains ⟨y, G(x̄ − x)⟩ > ‖y‖² / M takes it with the probability that makes that its share
in the mean, and else stays with its last answer; one that has none yet takes it. In the first round, where x̄ is the
last answer, the sum of all gains is then at most ‖y‖² in the mean: along y nobody overshoots.

With a target t = Σ_m G_m s_m the polytopes are moved by it: sums and y are those of G(x − s), and a client that has not
answered has x̄ = s. Nothing else changes.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coreplay.array_types import Floats
from coreplay.coordination.messages import Broadcast, Vector, mixture, norm, products
from coreplay.coordination.method import Candidates, Method, ServerStep, check_target, coordination_method
from coreplay.errors import InputError
from coreplay.selection import minimise
from coreplay.selection.solvers import in_groups
from coreplay.selection.solvers.in_groups import indicator

FEW = 15  # with about this number of clients or fewer, κ starts below √M
DAMPING = 0.15  # t / κ_1: how slowly the broadcast follows the best mixture
FALL = 0.75  # factor of κ after a round that did not overshoot; κ is divided by it after one that did
OVERSHOT = 1.1  # answers whose sum has more than this times the squared length of the sum before
LIMIT = 10.0  # κ / κ_1 at most
MOVES = 20  # tabu moves of a client's search


@coordination_method("corrective")
@dataclass(frozen=True, kw_only=True)
class Corrective(Method):
    """Answer with selections, mix the rounds' sums optimally and move a part of the way there: the default.

    Parameters
    ----------
    target : "zero" or "mean"
        Whether the sum of all kept gradients should be small (the paper), or near that of all pools in proportion.
    """

    target: str = "zero"
    returns_selections: ClassVar[bool] = True
    needs_all_rounds: ClassVar[bool] = True
    keeps_quotas: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_target(self.target)

    def start(self, pool: Candidates, rng: np.random.Generator) -> Floats:
        """Select alone, as the selector `polished` does if there is no target."""
        return indicator(pool.choose_alone(rng), pool.size)

    def answer(self, pool: Candidates, broadcast: Broadcast, past: Floats, rng: np.random.Generator) -> Floats:
        """Select what replies best to the broadcast."""
        kappa = broadcast.numbers.get("kappa", 0.0)
        if not broadcast.weights or kappa < 1:
            raise InputError("broadcast is not of method 'corrective': it needs weights and a kappa of at least 1")
        prices = pool.project(broadcast.vector)
        own = np.asarray(broadcast.weights) @ past if past[-1].any() else pool.offset
        linear = prices / kappa - pool.gram @ own
        chosen = in_groups.search(pool.gram, linear, pool.groups, in_groups.top(-prices, pool.groups), MOVES, rng)
        x = indicator(chosen, pool.size)
        gain, share = float(prices @ (own - x)), norm(broadcast.vector) ** 2 / broadcast.clients
        stays = gain > share and rng.random() * gain >= share
        return past[-1].copy() if stays and past[-1].any() else x

    def server_step(self, sums: list[Vector], clients: int, previous: Broadcast | None) -> ServerStep:
        """Find the best mixture of the rounds' sums and move towards it."""
        gram = products(sums)
        first = _first_kappa(clients)
        weights, relaxed = least_mixture(gram)
        kappa = first
        if previous is not None:
            damping = DAMPING * first
            weights = (weights + damping * np.append(previous.weights, 0.0)) / (1.0 + damping)
            overshot = gram[-1, -1] > OVERSHOT * gram[-2, -2]
            before = previous.numbers["kappa"] * first / _first_kappa(previous.clients)
            kappa = min(max(1.0, before / FALL if overshot else before * FALL), LIMIT * first)
        return ServerStep(mixture(sums, weights), relaxed, tuple(weights.tolist()), {"kappa": kappa})


def _first_kappa(clients: int) -> float:
    return max(1.0, clients / math.sqrt(clients + FEW))


def least_mixture(gram: Floats) -> tuple[Floats, float]:
    """Return the convex weights α that minimise αᵀKα, and that value.

    >>> weights, value = least_mixture(np.array([[4.0, 0.0], [0.0, 1.0]]))
    >>> weights.round(6).tolist(), round(value, 6)
    ([0.2, 0.8], 0.8)
    """
    scale = float(gram.diagonal().max()) or 1.0
    found = minimise(gram / scale, 1, tolerance=1e-10)
    return found.x, found.value * scale
