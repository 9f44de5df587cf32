"""A client's part in one period's coordination over Flower, kept on its disk between messages.

The same letter twice gets the same answer: the coordination's own state remembers what was answered, and each step of a
secure sum is written down before it is sent.
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.coordination import Broadcast, Client, Contribution
from coreplay.coordination.messages import NEVER
from coreplay.coordination.secure import SecureClient
from coreplay.coordination.secure.client import STEPS
from coreplay.coordination.secure.exchange import ATTEMPTS
from coreplay.engines.flower.letters import Letter
from coreplay.engines.flower.node import RefusedError
from coreplay.files import replacing

Ints = NDArray[np.int64]
Half = Callable[[bytes | None], Client]  # makes the client's half from its state


class Dialogue:
    """What one client says and hears in one period.

    Parameters
    ----------
    folder
        For this period alone; what is in it may hold secrets of a secure sum.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def contribute(self, letter: Letter, make: Half) -> Letter:
        """Answer a broadcast; under a secure sum, with keys alone: the contribution stays here until it is masked."""
        talk = str(letter.facts.get("talk", "")).encode()
        attempt: Any = letter.facts.get("attempt", 0)
        if self._read("talk") != talk or not (letter.data or attempt):  # it begins, perhaps again after a resume
            self._forget("*.bin")
            self._write("talk", talk)
        self._forget_secrets(letter.round)
        if letter.facts["secure"]:
            self._begin(letter.round, attempt)
        half = make(self._read("state.bin"))
        broadcast = Broadcast.from_bytes(letter.data, half.pool.dimension) if letter.data else None
        found = half.step(broadcast) if broadcast is not None else half.begin() if half.takes_part else None
        self._write("state.bin", half.state())
        if found is None:
            return letter.reply(half.name)
        if not letter.facts["secure"]:
            return letter.reply(half.name, data=found.to_bytes())
        self._write(f"contribution-{letter.round}.bin", found.to_bytes())
        kept = self._read(f"secure-{letter.round}.bin")
        if kept is None:
            bound = half.pool.budget * (1.0 if found.basis == NEVER else 2.0)
            mine = SecureClient(half.name, run=half.run, period=letter.period, round=letter.round, bound=bound)
            self._write(f"secure-{letter.round}.bin", mine.state())
        else:
            mine = SecureClient.from_state(kept)
        facts = {"basis": found.basis, "dimension": len(found.vector)}
        return letter.reply(half.name, facts, data=mine.advertise().to_bytes())

    def _begin(self, round: int, attempt: Any) -> None:
        """Forget the secrets of an earlier attempt at a round's secure sum: each attempt has its own."""
        if type(attempt) is not int or not 0 <= attempt < ATTEMPTS:
            raise RefusedError(
                f"a secure sum is tried {ATTEMPTS} times at most: attempt {str(attempt)[:20]} is refused"
            )
        name = f"attempt-{round}.bin"
        before = int(self._read(name) or b"0")
        if attempt < before:
            raise RefusedError(f"attempt {attempt} at this secure sum is over: this client is in attempt {before}")
        if attempt > before:
            for kind in ("secure", *STEPS):
                self._forget(f"{kind}-{round}.bin")
        self._write(name, str(attempt).encode())

    def step(self, letter: Letter) -> Letter:
        """Take one step of a secure sum; another letter for a step that was taken is refused."""
        self._same_talk(letter)
        asked = hashlib.sha256(letter.data).digest()
        kept = self._read(f"secure-{letter.round}.bin")
        if kept is None:
            raise RefusedError(f"this client is not in the secure sum of round {letter.round}")
        half = SecureClient.from_state(kept)
        given = self._read(f"{letter.act}-{letter.round}.bin")
        if given is not None:
            if given[: len(asked)] != asked:
                raise RefusedError(f"this client has answered another {letter.act!r} of this sum already")
            return letter.reply(half.name, data=given[len(asked) :])
        answer = self._act(letter, half)
        self._write(f"secure-{letter.round}.bin", half.state())  # better no answer than two
        self._write(f"{letter.act}-{letter.round}.bin", asked + answer)
        return letter.reply(half.name, data=answer)

    def _act(self, letter: Letter, half: SecureClient) -> bytes:
        found = self._read(f"contribution-{letter.round}.bin")
        if found is None:
            raise RefusedError("this client has lost its contribution")
        return half.answer(letter.act, letter.data, Contribution.from_bytes(found).vector)

    def settle(self, letter: Letter, make: Half) -> Ints:
        """Return what to keep after the last broadcast; without one, what the client chooses alone."""
        self._forget_secrets()
        if not letter.data:
            return make(None).finish()
        self._same_talk(letter)
        half = make(self._read("state.bin"))
        return half.finish(Broadcast.from_bytes(letter.data, half.pool.dimension))

    def _same_talk(self, letter: Letter) -> None:
        if self._read("talk") != str(letter.facts.get("talk", "")).encode():
            raise RefusedError("this client has not been part of this coordination")

    def _forget_secrets(self, round: int = -1) -> None:
        """Remove what was needed for the secure sums of other rounds."""
        for kind in ("secure", "contribution", "attempt", *STEPS):
            self._forget(f"{kind}-*.bin", besides=f"{kind}-{round}.bin")

    def _forget(self, pattern: str, besides: str = "") -> None:
        for old in self._folder.glob(pattern):
            if old.name != besides:
                old.unlink()

    def _read(self, name: str) -> bytes | None:
        place = self._folder / name
        return place.read_bytes() if place.exists() else None

    def _write(self, name: str, data: bytes) -> None:
        with replacing(self._folder / name, private=True) as temporary:
            temporary.write_bytes(data)


def forget_before(folder: Path, period: int) -> None:
    """Remove the dialogues of earlier periods; this one's may be asked for again."""
    for place in folder.iterdir():
        if place.is_dir() and place.name.isdigit() and int(place.name) < period:
            shutil.rmtree(place, ignore_errors=True)
