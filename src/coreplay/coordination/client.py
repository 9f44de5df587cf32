"""The client half: begin, step, finish. It decides nothing about time or transport and keeps n numbers per round.

    begin()            → contribution of round 0
    step(broadcast)    → contribution of the next round, or None where there is nothing to answer
    finish(broadcast)  → sorted indices of the samples to keep

A client may miss any message. What it sends is the difference from its last *counted* answer, and every broadcast says
which that is, so the server's sum holds exactly one answer of each client without knowing any of them.
"""

from bisect import bisect_right
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay import codec
from coreplay.coordination.matrix import Candidates, GradientMatrix
from coreplay.coordination.messages import NEVER, Broadcast, Contribution
from coreplay.coordination.method import Method, Past, make_method
from coreplay.errors import InputError
from coreplay.seeding import generator
from coreplay.selection.solvers.swaps import polish
from coreplay.validation import whole_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MINIMUM_POOL = 2

_STATE = {"run": str, "period": int, "client": str, "size": int, "rounds": list, "counted": list, "answers": np.float64}


def takes_part(size: int, budget: int, minimum_pool: int = MINIMUM_POOL) -> bool:
    """Return whether a client with a pool of this size coordinates: it must have a choice, and enough to choose from.

    >>> takes_part(6, 5), takes_part(5, 5), takes_part(1, 0), takes_part(6, 5, minimum_pool=7)
    (True, False, False, False)
    """
    return size > budget and size >= minimum_pool


class Client:
    """One client's part in coordinating one period.

    Parameters
    ----------
    name : str
        The client's lasting name; with `seed` and `period` it makes every random choice.
    gradients : (n, d) array or gradient matrix
        The client's pool.
    budget : int
        How many samples it may keep.
    method : str or Method
        The coordination method, with its options; the same as at the server.
    run : str
        A name for the run; the same as at the server.
    period : int
        The period whose pool this is.
    seed : int
        The seed of the run.
    minimum_pool : int
        With fewer samples than this the client stays out of the exchange and selects alone: the fewer samples, the more
        a contribution tells about each.
    **options
        Options of the method, if it is given by name.

    Examples
    --------
    >>> client = Client("alice", [[1.0, 0.0], [0.9, 0.1], [-1.0, 0.2]], budget=2, run="demo")
    >>> client.begin().vector.shape, client.finish().tolist()
    ((2,), [0, 2])
    """

    def __init__(
        self,
        name: str,
        gradients: ArrayLike | GradientMatrix,
        budget: int,
        *,
        run: str,
        period: int = 0,
        seed: int = 0,
        method: str | Method = "corrective",
        minimum_pool: int = MINIMUM_POOL,
        **options: Any,
    ) -> None:
        self.name, self.run, self.period, self.seed = name, run, period, seed
        self.method = make_method(method, **options) if isinstance(method, str) else method
        self.pool = Candidates(gradients, budget)
        self._minimum = whole_number(minimum_pool, "minimum_pool", least=0)
        self._answers: dict[int, Floats] = {}
        self._counted: list[int] = []

    @property
    def takes_part(self) -> bool:
        """Whether there is something to choose, from a pool that is large enough to hide a sample."""
        return takes_part(self.pool.size, self.pool.budget, self._minimum)

    def begin(self) -> Contribution:
        """Return the contribution of round 0: the uncoordinated choice."""
        if not self.takes_part:
            raise InputError(
                f"client {self.name!r} stays out of the exchange: its pool has {self.pool.size} samples for a budget "
                f"of {self.pool.budget} (minimum_pool {self._minimum}); call finish() without begin()"
            )
        if 0 not in self._answers:
            self._answers[0] = self.method.start(self.pool, self._rng(0))
        return self._contribution(0)

    def step(self, broadcast: Broadcast) -> Contribution | None:
        """Answer a broadcast; a repeated one gets the same answer again, an old or a final one gets none."""
        self._heed(broadcast)
        following = broadcast.round + 1
        if broadcast.final or not self.takes_part or following < max(self._answers, default=0):
            return None
        if following not in self._answers:
            self._answers[following] = self._reply(broadcast)
        return self._contribution(following)

    def finish(self, broadcast: Broadcast | None = None) -> Ints:
        """Return what to keep, as the reply to the last broadcast that arrived, or from what the client has."""
        budget = self.pool.budget
        if self.pool.size <= budget:
            return np.arange(self.pool.size, dtype=np.int64)
        if not self.takes_part:
            return polish(self.pool.gram, budget, self._rng(0))[0]
        if broadcast is not None:
            self._heed(broadcast)
            return self.method.settle(self._reply(broadcast), budget)
        if not self._answers:
            return self.method.settle(self.method.start(self.pool, self._rng(0)), budget)
        return self.method.settle(self._answers[max(self._answers)], budget)

    def state(self) -> bytes:
        """Return what must not be forgotten between messages, for a client that lives in a fresh process each time."""
        rounds = sorted(self._answers)
        answers = np.array([self._answers[k] for k in rounds], dtype=np.float64).reshape(-1)
        fields = {"run": self.run, "period": self.period, "client": self.name, "size": self.pool.size}
        return codec.pack("state", fields | {"rounds": rounds, "counted": self._counted, "answers": answers})

    def restore(self, state: bytes) -> None:
        """Go on from a `state()` of the same client, run, period and pool."""
        found = codec.unpack(state, "state", _STATE)
        answers = found["answers"]
        rounds, counted = ([codec.check_count(k, name) for k in found[name]] for name in ("rounds", "counted"))
        mine = (self.run, self.period, self.name, self.pool.size)
        if (found["run"], found["period"], found["client"], found["size"]) != mine:
            raise InputError(
                f"state is not one of client {self.name!r} in run {self.run!r}, period {self.period}, this pool"
            )
        if len(answers) != len(rounds) * self.pool.size or not set(counted) <= set(rounds):
            raise InputError(f"state of client {self.name!r} has {len(answers)} numbers for {len(rounds)} rounds")
        self._answers = dict(zip(rounds, answers.reshape(len(rounds), self.pool.size), strict=True))
        self._counted = counted

    def _heed(self, broadcast: Broadcast) -> None:
        """Learn from a broadcast which of the client's answers the server has counted."""
        if (broadcast.run, broadcast.period) != (self.run, self.period):
            raise InputError(
                f"broadcast is of run {broadcast.run!r}, period {broadcast.period}: "
                f"client {self.name!r} is in run {self.run!r}, period {self.period}"
            )
        if not self.takes_part:
            return
        if len(broadcast.vector) != self.pool.dimension:
            raise InputError(
                f"broadcast has {len(broadcast.vector)} numbers: the gradients of client {self.name!r} have "
                f"{self.pool.dimension}; do server and client use the same model and sketch size?"
            )
        last = broadcast.behind.get(self.name, broadcast.round)
        if last == NEVER:
            return
        if last not in self._answers:
            raise InputError(
                f"server counted an answer of client {self.name!r} in round {last} that it does not know: "
                "was its state lost? let it finish() without the broadcast"
            )
        if last not in self._counted:
            self._counted = sorted([*self._counted, last])

    def _reply(self, broadcast: Broadcast) -> Floats:
        return self.method.answer(self.pool, broadcast, self._past(broadcast.round), self._rng(broadcast.round + 1))

    def _past(self, until: int) -> Past:
        """Return the answers in the sums of rounds 0 … `until`; the first one stands for the rounds before it too."""
        counted = [k for k in self._counted if k <= until]
        if not counted:
            return Past((np.zeros(self.pool.size),) * (until + 1))
        held = [counted[max(bisect_right(counted, round) - 1, 0)] for round in range(until + 1)]
        return Past(tuple(self._answers[k] for k in held))

    def _contribution(self, round: int) -> Contribution:
        basis = max((k for k in self._counted if k < round), default=NEVER)
        x = self._answers[round]
        change = x if basis == NEVER else x - self._answers[basis]
        return Contribution(self.run, self.period, round, self.name, basis, self.pool.combine(change))

    @cached_property
    def _random(self) -> tuple[np.random.Generator, Any]:
        """The client's generator and the state in which it begins."""
        rng = generator(self.seed, self.name, self.period, "coordination")
        return rng, rng.bit_generator.state

    def _rng(self, round: int) -> np.random.Generator:
        """Return the client's generator, set to where the round's random numbers begin.

        One for all rounds: to make another and hand it to compiled code takes longer than a client's search.
        """
        rng, beginning = self._random
        bits = rng.bit_generator
        assert isinstance(bits, np.random.PCG64), "the kind that `generator` makes"
        bits.state = beginning
        bits.advance(round << 64)
        return rng
