"""Loads the finished runs below some folders."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.errors import InputError
from coreplay.experiments.sweep import PLAN, Sweep
from coreplay.files import read_json, read_json_lines
from coreplay.runtime import Config, Run
from coreplay.runtime.config_toml import flatten
from coreplay.runtime.run_dir import CONFIG, FAILURE, SUMMARY, RunFolder, is_number
from coreplay.runtime.strategy import ALL, NONE

Key = tuple[int, int]  # seed and sample of clients: what runs are paired by
Rows = tuple[dict[str, Any], ...]
# what may differ between runs that are compared
VARYING: dict[str, Any] = dict.fromkeys(
    ("seed", "baseline", "trackers", "replay", "continual", "engine", "plugins"), True
)
VARYING["stream"] = {"client_seed"}
ANY = "any"  # the budget of a strategy that has none


@dataclass(frozen=True)
class Finished:
    """A finished run with everything that a report uses."""

    run: Run
    config: Config
    versions: Mapping[str, str]
    coordination: Rows
    buffers: Rows
    key: Key  # the seed and the sample of clients
    label: str  # the strategy and the continual methods, with their options
    budget: str
    score: float  # the metric after the last period, on the test sets of all periods
    forgetting: float  # after the last period; NaN after a single period
    missing: tuple[str, ...]  # clients whose test sets the score lacks; runs that lack different ones are not compared
    setting: Mapping[str, str]  # the options, by dotted name, that must agree for runs to be compared

    @classmethod
    def of(cls, run: Run, config: Config, versions: Mapping[str, str], coordination: Rows, buffers: Rows) -> "Finished":
        """Derive what a report uses; any exception means that the run is damaged."""
        replay, matrix = config.replay, run.matrix
        setting = {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            for name, value in flatten(config.model_dump(exclude=VARYING)).items()
        }
        return cls(
            run,
            config,
            versions,
            coordination,
            buffers,
            key=(config.seed, config.stream.client_seed),
            label=config.label(),
            budget=ANY if replay.strategy in (NONE, ALL) else replay.budget_label(),
            score=float(matrix.all_period[-1]),
            forgetting=float(matrix.mean_forgetting()[-1]),
            missing=tuple(run.summary["missing"].get(str(len(matrix.all_period) - 1), ())),
            setting=setting | {"measured": f"{run.summary['metric']}, {matrix.values.shape[1]} periods"},
        )

    @property
    def name(self) -> str:
        """The strategy, budget and seed."""
        return f"{self.label} (budget {self.budget}, seed {self.key[0]})"


def load_runs(folders: Iterable[Path | str]) -> tuple[list[Finished], list[str]]:
    """Return all finished runs below the folders, and why other runs are left out.

    Raises
    ------
    InputError
        If a folder does not exist, or contains no finished run.
    """
    places = [Path(folder) for folder in folders]
    for folder in places:
        if not folder.is_dir():
            raise InputError(f"there is no folder {str(folder)!r}: name a folder that contains runs")
    marks = [path for folder in places for name in (CONFIG, FAILURE) for path in sorted(folder.rglob(name))]
    found: list[Finished] = []
    left_out: list[str] = []
    for path in {path.parent.resolve(): path.parent for path in marks}.values():
        try:
            failure = RunFolder(path).failure()
            if failure and not (path / SUMMARY).exists():  # it may have been finished by hand since
                left_out.append(f"the run in {str(path)!r} failed: {failure}")
            else:
                found.append(_load(path))
        except InputError as error:
            left_out.append(str(error))
        except Exception as error:  # one damaged folder must not prevent a report on the others
            left_out.append(f"the run in {str(path)!r} is damaged: {type(error).__name__}: {error}")
    left_out += [text for folder in places for plan in sorted(folder.rglob(PLAN)) for text in _not_started(plan)]
    if not found:
        names = ", ".join(repr(str(folder)) for folder in places)
        reason = f" ({left_out[0]})" if left_out else ""
        raise InputError(f"there is no finished run below {names}{reason}: create one with coreplay run")
    return _distinct(found, left_out), left_out


def _not_started(plan: Path) -> list[str]:
    """Name the runs of a sweep that have no folder yet, if any run of the sweep has one."""
    runs = plan.parent / "runs"
    if not runs.is_dir():
        return []
    try:
        names = [planned.name for planned in Sweep.load(plan).runs]
    except InputError as error:
        return [f"the plan of a sweep cannot be read: {error}"]
    missing = [name for name in names if not (runs / name).exists()]
    if len(missing) in (0, len(names)):
        return []
    some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    return [f"{len(missing)} of {len(names)} runs planned in {str(plan)!r} have not started: {some}"]


def _load(path: Path) -> Finished:
    versions = {str(name): str(value) for name, value in read_json(path / "versions.json").items()}
    coordination, buffers = (
        tuple(read_json_lines(file)) if (file := path / f"{name}.jsonl").exists() else ()
        for name in ("coordination", "buffers")
    )
    integers = [row[name] for row in coordination for name in ("period", "round")]
    integers += [value for row in buffers for value in (row["period"], row["kept"], row["distinct"], *row["arrived"])]
    objectives = [row[name] for row in coordination for name in ("relaxed", "integer")]
    if not all(type(value) is int and 0 <= value < 2**53 for value in integers):
        raise ValueError("coordination.jsonl and buffers.jsonl must contain whole numbers")
    if not all(value is None or is_number(value) for value in objectives):
        raise ValueError("coordination.jsonl must contain numbers")
    return Finished.of(Run.load(path), Config.read(path / CONFIG), versions, coordination, buffers)


def _distinct(found: list[Finished], left_out: list[str]) -> list[Finished]:
    """Keep one of the runs that a report cannot tell apart; name those whose numbers differ."""
    kept: dict[Any, Finished] = {}
    for run in found:
        other = kept.setdefault((tuple(run.setting.items()), run.label, run.budget, run.key), run)
        if other is not run and other.score != run.score:
            left_out.append(
                f"the run in {str(run.run.folder)!r} has the same strategy, budget and seed as the one in "
                f"{str(other.run.folder)!r}, but different numbers"
            )
    return list(kept.values())
