"""Algorithm 1 of the paper in broadcast form: same iterates, one message for all clients instead of one for each.

The paper's server sends h_m = G_m x_m − (1/M) Σ_n G_n x_n to each client. A client knows its own G_m x_m, so the mean
is enough. Its step (the inner minimisation of Algorithm 1) on the gram, with c = −G_mᵀh_m = G_mᵀ mean − G_mᵀG_m x_m:

    minimise ‖G_m x − h_m‖²  =  xᵀ G_mᵀG_m x + 2cᵀx + const       over 0 <= x <= 1, Σx = N_m.

The relaxed objective ‖Σ G_m x_m‖² never increases: it is block coordinate descent on the tight relaxation of Theorem 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coreplay.array_types import Floats
from coreplay.coordination.messages import Broadcast, Vector, products
from coreplay.coordination.method import Candidates, Method, ServerStep, coordination_method
from coreplay.errors import unknown
from coreplay.selection.solvers.capped_simplex import minimise


@coordination_method("alternating")
@dataclass(frozen=True, kw_only=True)
class Alternating(Method):
    """Alternate between convex steps at the clients and the mean at the server: the paper's Algorithm 1.

    Parameters
    ----------
    diagonal : "keep" or "zero"
        Whether the clients' programme keeps the diagonal of the gram (convex) or not (stalls after one round).
    """

    diagonal: str = "keep"
    returns_selections: ClassVar[bool] = False
    needs_all_rounds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the options."""
        if self.diagonal not in ("keep", "zero"):
            raise unknown("diagonal", self.diagonal, ["keep", "zero"])

    def start(self, pool: Candidates, rng: np.random.Generator) -> Floats:
        """Solve with h_m = 0: the uncoordinated relaxation."""
        return self._minimum(pool, None, None)

    def answer(self, pool: Candidates, broadcast: Broadcast, past: Floats, rng: np.random.Generator) -> Floats:
        """Solve with h_m from the broadcast mean and the client's own last counted answer."""
        x = past[-1]
        linear = pool.project(broadcast.vector) - pool.gram @ x
        return self._minimum(pool, linear, x if x.any() else None)

    def server_step(self, sums: list[Vector], clients: int, previous: Broadcast | None) -> ServerStep:
        """Broadcast the mean."""
        latest = sums[-1]
        return ServerStep(vector=latest / np.float32(clients), relaxed=float(products([latest])[0, 0]))

    def _minimum(self, pool: Candidates, linear: Floats | None, start: Floats | None) -> Floats:
        return minimise(pool.gram, pool.budget, linear=linear, diagonal=self.diagonal, start=start).x
