"""What the server asks of a client, and what the client answers: one class per kind of message.

Every message names the run, the period and the round that it belongs to, so an old one is recognised. Small fields are
JSON, arrays travel beside them (a model is one vector), and messages of a coordination are bytes.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, ClassVar, Self, cast, dataclass_transform, get_type_hints

from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from coreplay.errors import InputError

Arrays = Mapping[str, NDArray[Any]]
MODEL, PERIOD_START, CHANGE = "model", "period_start", "change"
KINDS: dict[str, type["Message"]] = {}  # every kind of message: its class


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,))
class _Record:
    """Makes every subclass a frozen dataclass, known by its kind if it has one."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    kind: ClassVar[str] = ""

    def __init_subclass__(cls, *, kind: str = "") -> None:
        dataclass(frozen=True, kw_only=True, eq=False)(cls)
        if kind:
            cls.kind = kind
            KINDS[kind] = cast("type[Message]", cls)


class Message(_Record):
    """What all requests and replies have in common: the run, the period and the round, arrays, and bytes."""

    run: str = ""
    period: int = 0
    round: int = 0
    arrays: Arrays = field(default_factory=dict)  # model, period_start, change, or NAME.key, which a hook sends
    data: bytes = b""  # a message of a coordination

    @property
    def model(self) -> NDArray[Any]:
        """The model as one vector; `InputError` if the message brings none."""
        if MODEL not in self.arrays:
            raise InputError(f"the {self.kind} message brings no array {MODEL!r}")
        return self.arrays[MODEL]

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


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


class Request(Message):
    """A message to a client."""

    def stamp(self) -> tuple[str, str, int, int]:
        """Return what a reply to this request must say."""
        return self.kind, self.run, self.period, self.round

    @cached_property
    def without_arrays(self) -> Self:
        """The request for clients that have the arrays already; one object for all of them."""
        return replace(self, arrays={})


class Join(Request, kind="join"):
    """Take part in a run from the end of a period on (-1: from its start).

    With it come the configuration, and what the task has learnt from the server's data, such as a vocabulary.
    """

    config: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)
    rewind_to: int = -1


class Train(Request, kind="train"):
    """Train from the model in `arrays` on the client's pool.

    `keep_from` is the earliest (period, round) that the run may go back to: older client state may be deleted.
    """

    keep_from: tuple[int, int] = (0, 0)


class Evaluate(Request, kind="evaluate"):
    """Measure the model on the client's test samples of every period.

    A simulation asks no single client but names rows of the test samples that all clients have together in a period,
    (period, first, last): batches of one client's few samples would be slow.
    """

    rows: tuple[int, int, int] | None = None


class Select(Request, kind="select"):
    """Choose alone what to keep of the pool, and keep it."""


class Contribute(Request, kind="contribute"):
    """Answer the broadcast in `data` (empty in the first round) of a coordination."""

    session: str = ""
    secure: bool = False
    attempt: int = 0


class SecureStep(Request, kind="secure_step"):
    """Take one step of a secure sum, on the server's message in `data`."""

    session: str = ""
    step: str = ""


class Settle(Request, kind="settle"):
    """Keep what the last broadcast in `data` makes the client choose; without one, what it chooses alone."""

    session: str = ""


class FinishPeriod(Request, kind="finish_period"):
    """Let the learning hooks finish the period, with its last model."""

    keep_from: tuple[int, int] = (0, 0)


class Inspect(Request, kind="inspect"):
    """Say what the client holds."""


class Erase(Request, kind="erase"):
    """Delete the sample with this key from everything that the client keeps."""

    key: str = ""


class Reply(Message, kind="reply"):
    """A message from a client: `to` is the kind of request that it answers."""

    client: str = ""
    to: str = ""

    def stamp(self) -> tuple[str, str, int, int]:
        """Return what this replies to."""
        return self.to, self.run, self.period, self.round

    def answering(self, request: Request, client: str) -> Self:
        """Return the reply with what it belongs to."""
        about: dict[str, Any] = {"run": request.run, "period": request.period, "round": request.round}
        return replace(self, client=client, to=request.kind, **about)


class Failed(Reply, kind="failed"):
    """The request could not be done."""

    error: str = ""


class Joined(Reply, kind="joined"):
    """How many samples the client has per period, what it keeps, and which files are its own."""

    train: list[int] = field(default_factory=list)
    test: list[int] = field(default_factory=list)
    kept: int = 0
    held: int = -1
    state_id: str = ""


class TrainReply(Reply, kind="trained"):
    """The change of the model and the hooks' sums in `arrays`, the number of samples, and the sum of losses."""

    samples: int = 0
    total: float = 0.0
    weight: float = 0.0


class EvaluateReply(Reply, kind="evaluated"):
    """Sums of metric terms and of weights per period."""

    totals: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


class KeptReply(Reply, kind="kept"):
    """How many samples the client keeps now, and after which period it chose them."""

    kept: int = 0
    held: int = -1


class ContributeReply(Reply, kind="contribution"):
    """The contribution, or keys for a secure sum, in `data`; nothing if the client has no answer."""

    basis: int = -1
    dimension: int = 0
