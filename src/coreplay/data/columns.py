"""Raw columns, as a file or a data set has them, and the roles that they play in a stream."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from coreplay.errors import InputError, unknown
from coreplay.validation import make_table

_DEFAULTS = {"label": "label", "timestamp": "timestamp", "period": "period", "split": "split"}


@dataclass(frozen=True)
class Columns:
    """Which column of a file plays which role.

    A role that is None takes the column of the role's own name if there is one (`label`, `timestamp`, `period`,
    `split`); "" leaves the role out. `order` has no default.

    >>> Columns(text="subject", label="").roles(["client_id", "subject", "period", "label"])
    {'client': 'client_id', 'text': 'subject', 'period': 'period'}
    """

    client: str = "client_id"
    text: str = "text"
    label: str | None = None
    timestamp: str | None = None
    period: str | None = None
    split: str | None = None
    order: str | None = None

    @classmethod
    def of(cls, given: "Columns | Mapping[str, str] | None") -> "Columns":
        """Make the mapping from what a configuration gives."""
        return make_table(cls, given, "columns")

    def roles(self, available: list[str], where: str = "") -> dict[str, str]:
        """Return the column of each role; a column that was asked for must be there."""
        found: dict[str, str] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if column is None:
                if _DEFAULTS.get(field.name) in available:
                    found[field.name] = _DEFAULTS[field.name]
            elif column in available:
                found[field.name] = column
            elif column:
                raise InputError(
                    f"{where}{unknown('column', column, available)}: it is needed for the {field.name}; name another "
                    f"column with columns={{{field.name!r}: ...}} or --{field.name}"
                )
        return found


@dataclass(frozen=True)
class Raw:
    """Columns by role, as they were read, and a function that says where row k came from."""

    columns: dict[str, list[Any]]
    where: Callable[[int], str]
    names: dict[str, str]

    def __len__(self) -> int:
        return len(self.columns["text"])

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    def check(self, role: str, fits: Callable[[Any], bool], problem: str) -> None:
        """Raise the error for the first value that does not fit; types are looked at first, which is fast."""
        values = self.columns[role]
        examples = dict(zip(map(type, values), values, strict=True))
        if not all(map(fits, examples.values())):
            raise self.error(next(k for k, value in enumerate(values) if not fits(value)), role, problem)

    def error(self, row: int, role: str, problem: str) -> InputError:
        """Return the error for one value: file, line, column, value, remedy."""
        value = repr(self.columns[role][row])
        shown = value if len(value) <= 60 else value[:57] + "..."
        return InputError(f"{self.where(row)}: column {self.names[role]!r} is {shown}: {problem}")
