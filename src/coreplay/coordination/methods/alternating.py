"""Algorithm 1 of the paper in broadcast form: same iterates, one message for all clients instead of one for each.

The paper's server sends h_m = G_m x_m − (1/M) Σ_n G_n x_n to each client. A client knows its own G_m x_m, so the mean
is enough. Its step (the inner minimisation of Algorithm 1) on the gram, with c = −G_mᵀh_m = G_mᵀ mean − G_mᵀG_m x_m:

    minimise ‖G_m x − h_m‖²  =  xᵀ G_mᵀG_m x + 2cᵀx + const       over 0 <= x <= 1, Σx = N_m.

The relaxed objective ‖Σ G_m x_m‖² never increases: it is block coordinate descent on the tight relaxation of Theorem 1.
With a target Σ_m G_m s_m, means and h_m are those of G_m(x_m − s_m), and c is the same.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coreplay.array_types import Floats, Ints
from coreplay.coordination.messages import Broadcast, Vector, products
from coreplay.coordination.method import Candidates, Method, ServerStep, check_target, coordination_method
from coreplay.errors import InputError, unknown
from coreplay.selection.solvers import in_groups

MOVES = 20  # tabu moves of the exchange search
ROUNDINGS = ("top", "sampling", "exchange")


@coordination_method("alternating")
@dataclass(frozen=True, kw_only=True)
class Alternating(Method):
    """Alternate between convex steps at the clients and the mean at the server: the paper's Algorithm 1.

    Parameters
    ----------
    diagonal : "keep" or "zero"
        Whether the clients' programme keeps the diagonal of the gram (convex) or not (stalls after one round).
    target : "zero" or "mean"
        Whether the sum of all kept gradients should be small (the paper), or near that of all pools in proportion.
    rounding : "top", "sampling" or "exchange"
        How the last x becomes a selection: its largest entries (the paper), systematic sampling with probabilities x,
        or a search by exchanges from the largest entries on the client's own programme.
    """

    diagonal: str = "keep"
    target: str = "zero"
    rounding: str = "top"
    returns_selections: ClassVar[bool] = False
    needs_all_rounds: ClassVar[bool] = False
    keeps_quotas: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the options."""
        if self.diagonal not in ("keep", "zero"):
            raise unknown("diagonal", self.diagonal, ["keep", "zero"])
        check_target(self.target)
        if self.rounding not in ROUNDINGS:
            raise InputError(f"rounding must be one of {', '.join(ROUNDINGS)}: got {self.rounding!r}")

    def start(self, pool: Candidates, rng: np.random.Generator) -> Floats:
        """Solve with h_m = 0: the uncoordinated relaxation."""
        return self._minimum(pool, pool.linear_alone(), None)

    def answer(self, pool: Candidates, broadcast: Broadcast, past: Floats, rng: np.random.Generator) -> Floats:
        """Solve with h_m from the broadcast mean and the client's own last counted answer."""
        return self._minimum(pool, _linear(pool, broadcast, past), past[-1] if past[-1].any() else None)

    def round_to_selection(
        self, x: Floats, pool: Candidates, broadcast: Broadcast | None, past: Floats, rng: np.random.Generator
    ) -> Ints:
        """Round x; without a broadcast the exchange search looks for the selection nearest to Gx."""
        if self.rounding == "sampling":
            return in_groups.sample(x, pool.groups, rng)
        chosen = in_groups.top(x, pool.groups)
        if self.rounding == "top":
            return chosen
        linear = _linear(pool, broadcast, past) if broadcast is not None else -pool.gram @ x
        return in_groups.search(pool.gram, linear, pool.groups, chosen, MOVES, rng)

    def server_step(self, sums: list[Vector], clients: int, previous: Broadcast | None) -> ServerStep:
        """Broadcast the mean."""
        latest = sums[-1]
        return ServerStep(vector=latest / np.float32(clients), relaxed=float(products([latest])[0, 0]))

    def _minimum(self, pool: Candidates, linear: Floats, start: Floats | None) -> Floats:
        return in_groups.minimise(pool.gram, linear, pool.groups, start=start, diagonal=self.diagonal)


def _linear(pool: Candidates, broadcast: Broadcast, past: Floats) -> Floats:
    """Return the c of the client's programme."""
    own = past[-1] if past[-1].any() else pool.offset
    return pool.project(broadcast.vector) - pool.gram @ own
