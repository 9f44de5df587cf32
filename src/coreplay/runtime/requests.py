"""What the server asks of a client, and what the client answers: one dataclass per kind of message.

Every message names the run, the period and the round that it belongs to, so an old one is recognised. Small fields are
JSON, arrays travel beside them (a model is one vector), and messages of a coordination are bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, get_type_hints

from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from coreplay.errors import InputError

Arrays = Mapping[str, NDArray[Any]]
MODEL, PERIOD_START, CHANGE = "model", "period_start", "change"


@dataclass(frozen=True, kw_only=True, eq=False)
class Message:
    """What all requests and replies have in common.

    Attributes
    ----------
    run : str
        The run that the message belongs to.
    period : int
        The period that it belongs to.
    round : int
        The round that it belongs to.
    arrays : mapping
        Vectors by name: `model`, `period_start`, `change`, or what hooks send, under `NAME.key`.
    data : bytes
        A message of a coordination.
    """

    kind: ClassVar[str] = ""
    run: str = ""
    period: int = 0
    round: int = 0
    arrays: Arrays = field(default_factory=dict)
    data: bytes = b""

    @property
    def model(self) -> NDArray[Any]:
        """The model as one vector; `InputError` if the message brings none."""
        return self.array(MODEL)

    def array(self, name: str) -> NDArray[Any]:
        """Return an array of the message; `InputError` if it has none of this name."""
        if name not in self.arrays:
            raise InputError(f"the {self.kind} message brings no array {name!r}")
        return self.arrays[name]

    def small_fields(self) -> dict[str, Any]:
        """Return every field that is not an array or bytes, as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("arrays", "data")}

    @classmethod
    def read(cls, given: Mapping[str, Any], arrays: Arrays, data: bytes) -> Self:
        """Make a message of plain data that came from another process; `InputError` if a field is wrong."""
        hints = get_type_hints(cls)
        wanted = {f.name: hints[f.name] for f in fields(cls) if f.name not in ("arrays", "data")}
        if set(given) != set(wanted):
            raise InputError(f"a {cls.kind} message has the fields {sorted(wanted)}: got {sorted(given)[:20]}")
        found = {}
        for name, value in given.items():
            try:
                found[name] = _adapter(wanted[name]).validate_python(value, strict=True)
            except (ValidationError, RecursionError):
                raise InputError(f"the field {name!r} of a {cls.kind} message has a wrong value") from None
        return cls(**found, arrays=arrays, data=data)


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(hint: Any) -> TypeAdapter[Any]:
    return _adapters.setdefault(str(hint), TypeAdapter(hint))


class Request(Message):
    """A message to a client."""

    def stamp(self) -> tuple[str, str, int, int]:
        """Return what a reply to this request must say."""
        return self.kind, self.run, self.period, self.round

    @cached_property
    def without_arrays(self) -> Self:
        """The request for clients that have the arrays already; one object for all of them."""
        return replace(self, arrays={})


@dataclass(frozen=True, kw_only=True, eq=False)
class Join(Request):
    """Take part in a run from the end of a period on (-1: from its start).

    With it come the configuration, and what the task has learnt from the server's data, such as a vocabulary.
    """

    kind: ClassVar[str] = "join"
    config: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)
    rewind_to: int = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Train(Request):
    """Train from the model in `arrays` on the client's pool.

    `keep_from` is the earliest (period, round) that the run may go back to: older client state may be deleted.
    """

    kind: ClassVar[str] = "train"
    keep_from: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluate(Request):
    """Measure the model on the client's test samples of every period.

    A simulation asks no single client but names rows of the test samples that all clients have together in a period,
    (period, first, last): batches of one client's few samples would be slow.
    """

    kind: ClassVar[str] = "evaluate"
    rows: tuple[int, int, int] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Select(Request):
    """Choose alone what to keep of the pool, and keep it."""

    kind: ClassVar[str] = "select"


@dataclass(frozen=True, kw_only=True, eq=False)
class Contribute(Request):
    """Answer the broadcast in `data` (empty in the first round) of a coordination."""

    kind: ClassVar[str] = "contribute"
    session: str = ""
    secure: bool = False
    attempt: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class SecureStep(Request):
    """Take one step of a secure sum, on the server's message in `data`."""

    kind: ClassVar[str] = "secure_step"
    session: str = ""
    step: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Settle(Request):
    """Keep what the last broadcast in `data` makes the client choose; without one, what it chooses alone."""

    kind: ClassVar[str] = "settle"
    session: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishPeriod(Request):
    """Let the learning hooks finish the period, with its last model."""

    kind: ClassVar[str] = "finish_period"
    keep_from: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Inspect(Request):
    """Say what the client holds."""

    kind: ClassVar[str] = "inspect"


@dataclass(frozen=True, kw_only=True, eq=False)
class Erase(Request):
    """Delete the sample with this key from everything that the client keeps."""

    kind: ClassVar[str] = "erase"
    key: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reply(Message):
    """A message from a client: `to` is the kind of request that it answers."""

    kind: ClassVar[str] = "reply"
    client: str = ""
    to: str = ""

    def stamp(self) -> tuple[str, str, int, int]:
        """Return what this replies to."""
        return self.to, self.run, self.period, self.round

    def answering(self, request: Request, client: str) -> Self:
        """Return the reply with what it belongs to."""
        about: dict[str, Any] = {"run": request.run, "period": request.period, "round": request.round}
        return replace(self, client=client, to=request.kind, **about)


@dataclass(frozen=True, kw_only=True, eq=False)
class Failed(Reply):
    """The request could not be done."""

    kind: ClassVar[str] = "failed"
    error: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined(Reply):
    """How many samples the client has per period, what it keeps, and which files are its own."""

    kind: ClassVar[str] = "joined"
    train: list[int] = field(default_factory=list)
    test: list[int] = field(default_factory=list)
    kept: int = 0
    held: int = -1
    state_id: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainReply(Reply):
    """The change of the model and the hooks' sums in `arrays`, the number of samples, and the sum of losses."""

    kind: ClassVar[str] = "trained"
    samples: int = 0
    total: float = 0.0
    weight: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluateReply(Reply):
    """Sums of metric terms and of weights per period."""

    kind: ClassVar[str] = "evaluated"
    totals: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptReply(Reply):
    """How many samples the client keeps now, and after which period it chose them."""

    kind: ClassVar[str] = "kept"
    kept: int = 0
    held: int = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class ContributeReply(Reply):
    """The contribution, or keys for a secure sum, in `data`; nothing if the client has no answer."""

    kind: ClassVar[str] = "contribution"
    basis: int = -1
    dimension: int = 0


def _kinds(of: type[Message]) -> dict[str, type[Message]]:
    return {c.kind: c for c in of.__subclasses__()} | {k: v for c in of.__subclasses__() for k, v in _kinds(c).items()}


def kinds() -> dict[str, type[Message]]:
    """Return every kind of message with its class.

    >>> kinds()["train"].__name__, kinds()["trained"].__name__
    ('Train', 'TrainReply')
    """
    return {name: cls for name, cls in _kinds(Message).items() if name}
