"""The result of a run: its folder, its summary and its metrics."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import InputError
from coreplay.files import read_json_lines, reading
from coreplay.runtime.run_dir import RunFolder
from coreplay.tasks import PeriodMatrix

if TYPE_CHECKING:
    import pandas

Rows = Sequence[Mapping[str, Any]]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its summary, and its metrics.

    `metrics` holds, by period: the task's figure on all test sets (`perplexity`, or what the task's metric is called),
    `forgetting` (mean over the periods before), `all_period_forgetting` (on all test sets taken as one), and
    `relative_change` where a baseline was given. `summary["missing"]` names the clients whose test sets are missing.
    """

    folder: Path
    summary: dict[str, Any]
    matrix: PeriodMatrix

    @classmethod
    def load(cls, folder: Path | str) -> "Run":
        """Read a finished run from its folder."""
        place = RunFolder.open(folder)
        summary = place.summary()
        if summary is None:
            raise InputError(f"the run in {str(folder)!r} is not finished: go on with --resume")
        rows = read_json_lines(place.path / "metrics.jsonl")
        with reading(place.path / "metrics.jsonl", "metrics"):
            return cls(place.path, summary, matrix_of(rows, summary))

    def frame(self) -> "pandas.DataFrame":
        """Return the metric as a table with one row per period trained and period tested."""
        import pandas

        return pandas.DataFrame(read_json_lines(self.folder / "metrics.jsonl"))

    @property
    def metrics(self) -> dict[str, list[float]]:
        """The figures after each period."""
        return dict(self.summary["metrics"])


def matrix_of(rows: Rows, summary: dict[str, Any]) -> PeriodMatrix:
    """Return the figures that a finished run wrote; how sums become figures is known to its task alone."""
    name, metrics = summary["metric"], summary["metrics"]
    values = by_period(rows, name)
    if len(values) != len(metrics[name]):
        raise ValueError(f"it has {len(values)} periods, the summary has {len(metrics[name])}")
    return PeriodMatrix(
        values,
        np.array(metrics[name], dtype=np.float64),
        np.array(metrics[f"{name}_mean_over_periods"], dtype=np.float64),
        summary["lower_is_better"],
        test_sets(rows),
    )


def by_period(rows: Rows, name: str) -> Floats:
    """Lay out a column of `metrics.jsonl`: one row per period trained, one column per period tested."""
    return np.array([row[name] for row in rows], dtype=np.float64).reshape(-1, 1 + rows[-1]["test_period"])


def test_sets(rows: Rows) -> NDArray[np.int64]:
    """Give each set of clients whose test samples are missing from a figure a number; 0 if none is missing."""
    numbers: dict[tuple[str, ...], int] = {(): 0}
    found = [numbers.setdefault(tuple(row.get("missing", ())), len(numbers)) for row in rows]
    return np.array(found, dtype=np.int64).reshape(-1, 1 + rows[-1]["test_period"])


def missing_clients(rows: Rows) -> dict[str, list[str]]:
    """Return, by period trained (from 0), the clients whose test sets are not in the figures."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if "missing" in row:
            found.setdefault(str(row["period"]), set()).update(row["missing"])
    return {period: sorted(clients) for period, clients in found.items()}


def or_none(values: Floats) -> list[float | None]:
    """Return the values with None for NaN, which JSON does not have."""
    return [None if math.isnan(value) else value for value in values.tolist()]
