"""A client's state between the messages of one coordination: its answers so far, and its secrets of a secure sum.

A repeated request gets the same answer. A client that lives in a fresh process for each message stores `state()`,
where only the client can read it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coreplay.array_types import Ints
from coreplay.codec import decode, encode
from coreplay.coordination.client import Client
from coreplay.coordination.messages import NEVER, Broadcast, Contribution
from coreplay.coordination.secure import ATTEMPTS, SecureClient
from coreplay.errors import RefusedError


@dataclass(frozen=True)
class Answer:
    """A client's answer in a round: its contribution, or its keys for a secure sum; no data if it has no answer.

    `basis` and `dimension` are the basis and the length of the contribution, also where `data` has keys.
    """

    data: bytes = b""
    basis: int = NEVER
    dimension: int = 0


class Session:
    """Answers the requests of one coordination for one client.

    Parameters
    ----------
    make : function
        Makes the client's half of the coordination when it is first needed.
    state : bytes, optional
        The client's `state()` after the last request.
    """

    def __init__(self, make: Callable[[], Client], state: bytes | None = None) -> None:
        self._make = make
        self._client: Client | None = None
        self._secure: SecureClient | None = None
        self._id, self._round, self._attempt = "", NEVER, 0
        self._parts: dict[str, bytes] = {}  # the contribution, and what was answered in each step of a secure sum
        if state is not None:
            self._restore(state)

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
        if not secure:
            return Answer(data, found.basis, len(found.vector))
        self._parts["contribution"] = data
        if self._secure is None:
            bound = self.client.pool.budget * (1.0 if found.basis == NEVER else 2.0)
            self._secure = SecureClient(self.client.name, found.stamp, bound=bound)
        return Answer(self._secure.advertise().to_bytes(), found.basis, len(found.vector))

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

    def _read(self, broadcast: bytes | Broadcast) -> Broadcast:
        if isinstance(broadcast, Broadcast):
            return broadcast
        return Broadcast.from_bytes(broadcast, self.client.pool.dimension)

    def _check(self, session: str) -> None:
        if self._id != session:
            raise RefusedError("this client has not been part of this coordination")

    def state(self) -> bytes:
        """Return everything, secrets included."""
        parts = dict(self._parts)
        if self._client is not None:
            parts["client"] = self._client.state()
        if self._secure is not None:
            parts["secure"] = self._secure.state()
        arrays = {name: np.frombuffer(data, dtype=np.uint8) for name, data in parts.items()}
        return encode({"session": self._id, "round": self._round, "attempt": self._attempt, **arrays})

    def _restore(self, state: bytes) -> None:
        found = decode(state)
        self._id, self._round, self._attempt = found.pop("session"), found.pop("round"), found.pop("attempt")
        self._parts = {name: array.tobytes() for name, array in found.items()}
        secret = self._parts.pop("secure", None)
        self._secure = None if secret is None else SecureClient.from_state(secret)
