"""The client half: begin, step, finish. It knows nothing of time or transport and keeps n numbers per round.

    begin()            → contribution of round 0
    step(broadcast)    → contribution of the next round, or None if there is nothing to answer
    finish(broadcast)  → sorted indices of the samples to keep

A client may miss any message. It sends the difference from its last *counted* answer, and every broadcast says which
that is, so the server's sum has exactly one answer per client without knowing any of them. `Session` answers the
requests of a whole coordination, with or without a secure sum, and remembers what was answered.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coreplay import codec
from coreplay.array_types import Floats, Ints
from coreplay.coordination.messages import NEVER, Broadcast, Contribution, Message
from coreplay.coordination.method import Candidates, GradientMatrix, Method, check_quota, make_method
from coreplay.coordination.secure import ATTEMPTS, SecureClient
from coreplay.errors import InputError, RefusedError
from coreplay.seeding import generator
from coreplay.selection.pool import Column
from coreplay.selection.quotas import Quota
from coreplay.validation import whole_number

MINIMUM_POOL = 2


@dataclass(frozen=True, eq=False)
class ClientState(Message):
    """A client's answers so far, by round, and which were counted; `round` is not used."""

    client: str
    size: int
    rounds: list[int]
    counted: list[int]
    answers: NDArray[np.float64]


def takes_part(size: int, budget: int, minimum_pool: int = MINIMUM_POOL) -> bool:
    """Return whether a client with a pool of this size coordinates: only with a choice, and enough samples.

    >>> takes_part(6, 5), takes_part(5, 5), takes_part(1, 0), takes_part(6, 5, minimum_pool=7)
    (True, False, False, False)
    """
    return size > budget and size >= minimum_pool


class Client:
    """One client's part in coordinating one period.

    Parameters
    ----------
    name : str
        The client's permanent name; `seed`, `name` and `period` determine all random choices.
    gradients : (n, d) array or gradient matrix
        Gradients of the client's pool.
    budget : int
        Number of samples to keep.
    run : str
        Name of the run, as at the server.
    period : int
        Period of the run.
    seed : int
        Seed of the run.
    method : str or Method
        Coordination method, as at the server.
    minimum_pool : int
        A client with fewer samples selects alone: the fewer there are, the more a contribution tells about each.
    columns : mapping of str to (n, ...) array or function, optional
        Further columns of the pool, for methods that read them: see `coreplay.selection.Pool`.
    new : (n,) bool array, optional
        Which samples are new in this period, for the quota "new_old".
    seen : int, optional
        How many samples the client saw in earlier periods, for the quota "new_old".
    quota : str
        Groups that must keep the same number of samples each, as in `coreplay.select`. What it leaves to chance is
        drawn from `seed`, `name` and `period`, so that it is the same whenever the client is made again.
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
        columns: Mapping[str, Column] | None = None,
        new: ArrayLike | None = None,
        seen: int | None = None,
        quota: Quota = "none",
        **options: Any,
    ) -> None:
        self.name, self.run, self.period = name, run, period
        self.method = make_method(method, **options)
        check_quota(quota, self.method)
        self.pool = Candidates(
            gradients,
            budget,
            columns,
            method if isinstance(method, str) else type(method).__name__,
            new=new,
            seen=seen,
            quota=quota,
            target=self.method.target,
            rng=None if quota == "none" else generator(seed, name, period, "quota"),
        )
        self._minimum = whole_number(minimum_pool, "minimum_pool", least=0)
        self._generator = generator(seed, name, period, "coordination")
        self._beginning: Any = self._generator.bit_generator.state
        self._answers: dict[int, Floats] = {}
        self._counted: list[int] = []

    @property
    def takes_part(self) -> bool:
        """Whether there is a choice, from a pool that is large enough to hide a sample."""
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
        """Return the samples to keep, as the reply to the last broadcast, or without one from the latest answer."""
        if self.pool.size <= self.pool.budget:
            return np.arange(self.pool.size, dtype=np.int64)
        if not self.takes_part:
            return self.pool.choose_alone(self._rng(0))
        if broadcast is not None:
            self._heed(broadcast)
            x, past = self._reply(broadcast), self._past(broadcast.round)
        else:
            rng = self._rng(0)
            x = self._answers[max(self._answers)] if self._answers else self.method.start(self.pool, rng)
            past = x[None]
        return self.method.round_to_selection(x, self.pool, broadcast, past, self._generator)

    def state(self) -> bytes:
        """Return what the client must remember between messages, for one that lives in a fresh process each time."""
        rounds = sorted(self._answers)
        answers = np.array([self._answers[k] for k in rounds], dtype=np.float64).reshape(-1)
        known = (self.name, self.pool.size, rounds, self._counted, answers)
        return ClientState(self.run, self.period, 0, *known).to_bytes()

    def restore(self, state: bytes) -> None:
        """Continue from a `state()` of the same client, run, period and pool."""
        found = ClientState.from_bytes(state)
        if (*found.stamp[:2], found.client, found.size) != (self.run, self.period, self.name, self.pool.size):
            raise InputError(
                f"state is not one of client {self.name!r} in run {self.run!r}, period {self.period}, this pool"
            )
        answers = found.answers.reshape(len(found.rounds), self.pool.size)
        self._answers, self._counted = dict(zip(found.rounds, answers, strict=True)), found.counted

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

    def _past(self, until: int) -> Floats:
        """Return the answers in the sums of rounds 0 … `until`; the first one stands for the rounds before it too."""
        counted = [k for k in self._counted if k <= until]
        if not counted:
            return np.zeros((until + 1, self.pool.size))
        held = [counted[max(bisect_right(counted, round) - 1, 0)] for round in range(until + 1)]
        return np.array([self._answers[k] for k in held])

    def _contribution(self, round: int) -> Contribution:
        basis = max((k for k in self._counted if k < round), default=NEVER)
        x = self._answers[round]
        change = x - (self.pool.offset if basis == NEVER else self._answers[basis])
        return Contribution(self.run, self.period, round, self.name, basis, self.pool.combine(change))

    def _rng(self, round: int) -> np.random.Generator:
        """Return the client's generator, set to where the round's random numbers begin.

        All rounds use one: making another and passing it to compiled code takes longer than a client's search.
        """
        bits = self._generator.bit_generator
        assert isinstance(bits, np.random.PCG64), "the kind that `generator` makes"
        bits.state = self._beginning
        bits.advance(round << 64)
        return self._generator


@dataclass(frozen=True)
class Answer:
    """A client's answer in a round: its contribution, or its keys for a secure sum; no data if it has no answer.

    `basis` and `dimension` are the basis and the length of the contribution, also where `data` has keys.
    """

    data: bytes = b""
    basis: int = NEVER
    dimension: int = 0


class Session:
    """Answers the requests of one coordination for one client; a repeated request gets the same answer.

    Parameters
    ----------
    make : function
        Makes the client's half of the coordination when it is first needed.
    state : bytes, optional
        The client's `state()` after the last request, if it lives in a fresh process for each.
    """

    def __init__(self, make: Callable[[], Client], state: bytes | None = None) -> None:
        self._make = make
        self._client: Client | None = None
        self._secure: SecureClient | None = None
        self._id, self._round, self._attempt = "", NEVER, 0
        self._parts: dict[str, bytes] = {}  # the contribution, and what was answered in each step of a secure sum
        if state is not None:
            found = codec.decode(state)
            self._id, self._round, self._attempt = found.pop("session"), found.pop("round"), found.pop("attempt")
            self._parts = {name: array.tobytes() for name, array in found.items()}
            secret = self._parts.pop("secure", None)
            self._secure = None if secret is None else SecureClient.from_state(secret)

    def state(self) -> bytes:
        """Return everything, secrets included: keep it where only the client can read it."""
        parts = dict(self._parts)
        if self._client is not None:
            parts["client"] = self._client.state()
        if self._secure is not None:
            parts["secure"] = self._secure.state()
        arrays = {name: np.frombuffer(data, dtype=np.uint8) for name, data in parts.items()}
        return codec.encode({"session": self._id, "round": self._round, "attempt": self._attempt, **arrays})

    @property
    def client(self) -> Client:
        """The client's half of the coordination."""
        if self._client is None:
            self._client = self._make()
            if "client" in self._parts:
                self._client.restore(self._parts["client"])
        return self._client

    def contribute(
        self, session: str, broadcast: bytes | Broadcast | None, *, secure: bool = False, attempt: int = 0
    ) -> Answer:
        """Answer a broadcast, None being the first round; for a secure sum answer with keys."""
        if self._id != session or (broadcast is None and not attempt):  # it starts, perhaps again after a resume
            self._parts, self._client, self._secure = {}, None, None
            self._id, self._round, self._attempt = session, NEVER, 0
        found: Contribution | None
        if broadcast is None:
            round, found = 0, self.client.begin() if self.client.takes_part else None
        else:
            message = self._read(broadcast)
            round, found = message.round + 1, self.client.step(message)
        self._enter(round, attempt)
        if found is None:
            return Answer()
        data = found.to_bytes()
        if secure:
            self._parts["contribution"] = data
            if self._secure is None:
                bound = self.client.method.max_norm(self.client.pool.budget, found.basis)
                self._secure = SecureClient(self.client.name, found.stamp, bound=bound)
            data = self._secure.advertise().to_bytes()
        return Answer(data, found.basis, len(found.vector))

    def step(self, session: str, step: str, round: int, data: bytes) -> bytes:
        """Take one step of a secure sum; another message for a step that was taken is refused."""
        self._check(session)
        if self._secure is None or round != self._round:
            raise RefusedError(f"this client is not in the secure sum of round {round}")
        asked, given = hashlib.sha256(data).digest(), self._parts.get(step)
        if given is not None:
            if given[: len(asked)] != asked:
                raise RefusedError(f"this client has answered another {step!r} of this sum already")
            return given[len(asked) :]
        vector = Contribution.from_bytes(self._parts["contribution"]).vector
        answer = self._secure.answer(step, data, vector)
        self._parts[step] = asked + answer
        return answer

    def finish(self, session: str, broadcast: bytes | Broadcast | None) -> Ints:
        """Return the samples to keep after the last broadcast; without one, those that the client chooses alone."""
        self._forget_secrets()
        if broadcast is None:
            self._parts, self._client = {}, None
            return self.client.finish()
        self._check(session)
        return self.client.finish(self._read(broadcast))

    def _enter(self, round: int, attempt: int) -> None:
        """Forget the secrets of other rounds, and of earlier attempts at this round's secure sum."""
        if not 0 <= attempt < ATTEMPTS:
            raise RefusedError(f"a secure sum is tried {ATTEMPTS} times at most: attempt {attempt} is refused")
        if round == self._round and attempt < self._attempt:
            raise RefusedError(f"attempt {attempt} at this secure sum is over: client is in attempt {self._attempt}")
        if (round, attempt) != (self._round, self._attempt):
            self._forget_secrets()
        self._round, self._attempt = round, attempt

    def _forget_secrets(self) -> None:
        self._secure = None
        self._parts = {name: data for name, data in self._parts.items() if name == "client"}

    def _read(self, broadcast: bytes | Broadcast) -> Broadcast:
        if isinstance(broadcast, Broadcast):
            return broadcast
        return Broadcast.from_bytes(broadcast, self.client.pool.dimension)

    def _check(self, session: str) -> None:
        if self._id != session:
            raise RefusedError("this client has not been part of this coordination")
