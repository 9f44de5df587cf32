"""Coordination over Flower: who is asked, who has answered, whether they are enough.

`Rounds` is what the engine of a run and the selection phase for somebody's own app have in common.
"""

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coreplay import codec
from coreplay.coordination import Broadcast, Contribution
from coreplay.coordination.messages import NEVER
from coreplay.coordination.secure import ImpossibleSumError
from coreplay.coordination.secure.exchange import add_securely
from coreplay.engines.flower.courier import BEGINNING, Answer, Courier
from coreplay.engines.flower.letters import Letter, Model
from coreplay.errors import InputError
from coreplay.federated.engine import EngineError, SecureTotal, Watch

PER_PEER = 2**13  # bytes about one other client in a message of a secure sum: its name in JSON, and shares


class QuorumError(EngineError):
    """Too few clients have answered; names those who did not, and why."""


class Rounds:
    """Carries the letters of a coordination.

    Parameters
    ----------
    courier
        Brings letters to clients.
    number : str
        Of the run, in letters.
    name : str
        Of the run, in the messages of the coordination.
    quorum : float
        Share of the clients asked that must answer.
    dimension : int
        Length of a contribution.
    """

    def __init__(self, courier: Courier, number: str, name: str, quorum: float, dimension: int = 0) -> None:
        self.courier, self.number, self.name, self.quorum = courier, number, name, quorum
        self.dimension = dimension
        self.greeting = max(courier.timeout, BEGINNING)  # seconds to wait for a node's first answer
        self._sizes: dict[str, int] = {}
        self._informed: set[str] = set()  # who has this period's model, and has made its gradients
        self._talk = ""  # tells one coordination from another, also of the same period after a resume

    def enter(self, answer: Answer) -> str:
        """Take in what a client said hello with; return what is wrong with it."""
        raise NotImplementedError

    def most_kept(self, client: str, period: int) -> int:
        """Return how many samples a client can keep after a period."""
        raise NotImplementedError

    def look(self, watch: Watch) -> dict[str, str]:
        """Get to know clients that have come, or have come back; return those who can't take part, and why."""
        failed = {}
        for node, answer in self.courier.look(self.greeting):
            known = answer.client in self.courier.nodes
            problem = answer.problem or self._named_badly(answer.client)
            problem = problem or self.courier.rivalled(answer, node) or self.enter(answer)
            if problem:
                if not known:
                    failed[answer.client[:40]] = problem
                how = "is not there yet" if answer.late else "can't take part"
                watch({"text": f"client {answer.client[:40]!r} {how}: {problem}"})
                continue
            if self.courier.accept(answer, node):
                watch({"text": f"client {answer.client!r} is reached at another node now"})
            self._informed.discard(answer.client)
        return failed

    def _named_badly(self, client: str) -> str:
        try:
            codec.check_name(client, "client")
        except InputError as error:
            return str(error)
        return ""

    def sizes(self) -> dict[str, int]:
        """Return how many samples each client's buffer holds."""
        return dict(self._sizes)

    def contribute(
        self, period: int, clients: Sequence[str], model: Model, broadcast: bytes | None, watch: Watch
    ) -> Iterator[bytes]:
        """Let clients answer a broadcast."""
        missing: dict[str, str] = {}
        for _, answer in self._asked(period, clients, model, broadcast, False, watch, missing):
            if answer.data:
                yield answer.data
        self.check_quorum(len(clients), missing, f"coordination, period {period}")

    def contribute_securely(
        self,
        period: int,
        round: int,
        bounds: Mapping[str, float],
        bases: Mapping[str, int],
        model: Model,
        broadcast: bytes | None,
        watch: Watch,
    ) -> SecureTotal | None:
        """Carry the messages of a secure sum: keys, shares, masked vectors, and what takes the masks off the sum."""
        missing: dict[str, str] = {}

        def keys(clients: Sequence[str], attempt: int) -> dict[str, Letter]:
            found = {}
            for client, answer in self._asked(period, clients, model, broadcast, True, watch, missing, attempt):
                if not answer.data:
                    continue
                if answer.facts["basis"] != bases[client]:
                    self._refuse(client, "sent the difference from an answer that was not counted", watch, missing)
                elif answer.facts["dimension"] != self.dimension:
                    length = answer.facts["dimension"]
                    problem = f"has a contribution of {length} numbers: expected {self.dimension}"
                    self._refuse(client, problem, watch, missing)
                elif round == 0 or answer.facts["basis"] != NEVER:
                    found[client] = answer
            return found

        able = keys(list(bounds), 0)
        self.check_quorum(len(bounds), missing, f"coordination, period {period}")
        if len(able) < 2:  # a sum of one hides nothing
            return None

        def ask(step: str, messages: Mapping[str, bytes], attempt: int) -> dict[str, bytes]:
            if step == "keys":
                found = keys(list(messages), attempt) if attempt else able
                return {client: found[client].data for client in messages if client in found}
            letters = {
                client: Letter(step, self.number, period, round, {"talk": self._talk}, data=message)
                for client, message in messages.items()
            }
            expected = 4 * self.dimension if step == "mask" else PER_PEER * len(able)
            return {client: answer.data for client, answer in self._carry(letters, watch, missing, expected)}

        try:
            found = add_securely(
                ask,
                {client: bounds[client] for client in able},
                self.dimension,
                run=self.name,
                period=period,
                round=round,
                name=lambda client, reason: self._refuse(client, reason, watch, missing),
            )
        except ImpossibleSumError as error:
            watch({"text": f"secure sum of period {period}, round {round} is not used: {error}"})
            return None
        except InputError as error:  # too few are left
            raise QuorumError(f"secure sum of period {period}, round {round}: {error}; {_named(missing)}") from None
        counted = {client: int(able[client].facts["basis"]) for client in found.survivors}
        return SecureTotal(counted, found.total, found.bytes_up, found.bytes_down)

    def settle(self, period: int, clients: Sequence[str], model: Model, broadcast: bytes | None, watch: Watch) -> None:
        """Let each client keep what it chose; those who took no part choose alone."""
        letters = {}
        for client in clients:
            informed = client in self._informed
            given = None if informed else model
            told = (broadcast or b"") if informed else b""
            letters[client] = Letter("settle", self.number, period, 0, {"talk": self._talk}, given, told)
        self._kept(period, letters, watch)
        self._informed = set()

    def _asked(
        self,
        period: int,
        clients: Sequence[str],
        model: Model,
        broadcast: bytes | None,
        secure: bool,
        watch: Watch,
        missing: dict[str, str],
        attempt: int = 0,
    ) -> Iterator[tuple[str, Letter]]:
        """Ask for contributions; the model goes to those who do not have it yet."""
        self.look(watch)
        if broadcast is None and not attempt:
            self._informed, self._talk = set(), uuid.uuid4().hex
        round = 0 if broadcast is None else Broadcast.from_bytes(broadcast).round + 1
        letters = {}
        for client in clients:
            given = None if client in self._informed else model
            facts = {"secure": secure, "talk": self._talk, "attempt": attempt}
            letters[client] = Letter("contribute", self.number, period, round, facts, given, broadcast or b"")
        expected = 0 if secure else 4 * self.dimension
        for client, answer in self._carry(letters, watch, missing, expected):
            problem = _check_keys(answer) if secure else _check_contribution(answer, client, self.dimension)
            if answer.data and problem:
                self._refuse(client, problem, watch, missing)
                continue
            self._informed.add(client)
            yield client, answer

    def _kept(self, period: int, letters: Mapping[str, Letter], watch: Watch) -> set[str]:
        """Let clients keep what they chose; return those that said so."""
        missing: dict[str, str] = {}
        self.look(watch)
        for client, answer in self._carry(letters, watch, missing):
            most = self.most_kept(client, period)
            if not is_whole([answer.facts.get("kept")]) or answer.facts["kept"] > most:
                self._refuse(client, f"did not say how much it keeps: from 0 to {most} samples", watch, missing)
                continue
            self._sizes[client] = answer.facts["kept"]
        self.check_quorum(len(letters), missing, f"selection, period {period}")
        return letters.keys() - missing.keys()

    def _carry(
        self, letters: Mapping[str, Letter], watch: Watch, missing: dict[str, str], expected: int = 0
    ) -> Iterator[tuple[str, Letter]]:
        for answer in self.courier.carry(letters, expected):
            if answer.letter is None:
                self._refuse(answer.client, answer.problem, watch, missing)
            else:
                watch({"clients": 1, "client": answer.client})
                yield answer.client, answer.letter
            del answer  # may be a model: not to be kept while the next one is waited for

    def _refuse(self, client: str, problem: str, watch: Watch, missing: dict[str, str]) -> None:
        missing[client] = problem
        watch({"text": f"client {client!r} {problem}"})

    def check_quorum(self, asked: int, missing: Mapping[str, str], what: str) -> None:
        """Raise a `QuorumError` if too many of those who were asked are missing."""
        wanted = max(1, math.ceil(self.quorum * asked)) if asked else 0
        if asked - len(missing) < wanted:
            raise QuorumError(
                f"{what}: {asked - len(missing)} of {asked} clients answered, the quorum is {wanted}; "
                f"missing: {_named(missing)}"
            )


def _named(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{client!r} {problem}" for client, problem in sorted(missing.items()))


def _check_keys(answer: Letter) -> str:
    length, basis = answer.facts.get("dimension"), answer.facts.get("basis")
    if type(length) is int and 0 < length < 2**31 and type(basis) is int and basis >= NEVER:
        return ""
    return "did not say what its contribution is the difference from, and how long it is"


def _check_contribution(answer: Letter, client: str, dimension: int) -> str:
    try:
        found = Contribution.from_bytes(answer.data, dimension)
    except InputError as error:
        return f"sent no contribution: {error}"
    return "" if found.client == client else f"sent a contribution as {found.client[:40]!r}"


def is_whole(values: Any) -> bool:
    """Say whether a fact is a list of whole numbers from 0."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**40 for value in values)


def is_finite(values: Any, length: int) -> bool:
    """Say whether a fact is a list of so many finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == length
        and all(type(value) in (int, float) and -1e300 < value < 1e300 for value in values)
    )
