"""The finished runs below some folders, and in which groups they can be compared.

Runs are compared if all of their configuration is the same but for what a comparison is about (strategy and budget),
what it is repeated over (seed and sample of clients) and what does not change results (engine, trackers, baseline).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.errors import InputError
from coreplay.experiments.sweep import PLAN, Sweep
from coreplay.federated import Config, Run
from coreplay.federated.folder import CONFIG, FAILURE, SUMMARY, RunFolder, is_number
from coreplay.federated.strategy import ALL, NONE
from coreplay.files import read_json, read_json_lines

Key = tuple[int, int]  # seed and sample of clients: what runs are paired by
VARYING = ("seed", "baseline", "trackers", "replay", "engine", "stream.client_seed")
ANY = "any"


@dataclass(frozen=True)
class Finished:
    """A finished run with everything that a report says of it."""

    run: Run
    config: Config
    versions: dict[str, str]
    coordination: tuple[dict[str, Any], ...]
    buffers: tuple[dict[str, Any], ...]

    @property
    def key(self) -> Key:
        """What it is paired by."""
        return self.config.seed, self.config.stream.client_seed

    @property
    def label(self) -> str:
        """Its strategy."""
        return self.config.replay.label()

    @property
    def is_reference(self) -> bool:
        """Whether the budget does not matter to it."""
        return self.config.replay.strategy in (NONE, ALL)

    @property
    def budget(self) -> str:
        """Its budget."""
        return ANY if self.is_reference else self.config.replay.budget_label()

    @property
    def figure(self) -> float:
        """The metric after the last period, on the test sets of all periods."""
        return float(self.run.matrix.all_period[-1])

    @property
    def forgetting(self) -> float:
        """The forgetting after the last period; NaN after a single one."""
        return float(self.run.matrix.mean_forgetting()[-1])

    @property
    def missing(self) -> tuple[str, ...]:
        """The clients whose test sets are not in the figure; only runs that lack the same ones can be compared."""
        return tuple(self.run.summary["missing"].get(str(len(self.run.matrix.all_period) - 1), ()))

    @property
    def seconds(self) -> float:
        """How long it took."""
        return float(sum(self.run.summary["seconds"].values()))

    def setting(self) -> dict[str, str]:
        """Return the configuration that must agree for runs to be compared, by dotted name."""
        flat = flattened(self.config.model_dump())
        kept = {name: value for name, value in flat.items() if not _under(name, VARYING)}
        return kept | {"measured": f"{self.run.summary['metric']}, {self.run.matrix.values.shape[1]} periods"}


def flattened(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values by dotted name, as texts.

    >>> flattened({"stream": {"options": {"num_clients": 5}}, "seed": 0})
    {'stream.options.clients': '5', 'seed': '0'}
    """
    found: dict[str, str] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found


def _under(name: str, sections: Iterable[str]) -> bool:
    return any(name == section or name.startswith(f"{section}.") for section in sections)


def gather(folders: Iterable[Path | str]) -> tuple[list[Finished], list[str]]:
    """Return all finished runs below the folders, and why others are left out.

    Raises
    ------
    InputError
        If a folder does not exist, or nothing below them is finished.
    """
    places = [Path(folder) for folder in folders]
    for folder in places:
        if not folder.is_dir():
            raise InputError(f"there is no folder {str(folder)!r}: name one that holds runs")
    marks = [path for folder in places for name in (CONFIG, FAILURE) for path in sorted(folder.rglob(name))]
    paths = {path.parent.resolve(): path.parent for path in marks}
    found: list[Finished] = []
    left: list[str] = []
    for path in paths.values():
        try:
            failure = RunFolder(path).failure()
            if failure and not (path / SUMMARY).exists():  # it may have been finished since by hand
                left.append(f"the run in {str(path)!r} failed: {failure}")
            else:
                found.append(_read(path))
        except InputError as error:
            left.append(str(error))
        except Exception as error:  # whatever is wrong with one folder, the others are compared
            left.append(f"the run in {str(path)!r} is damaged: {type(error).__name__}: {error}")
    left += [text for folder in places for plan in sorted(folder.rglob(PLAN)) for text in _not_begun(plan)]
    if not found:
        names = ", ".join(repr(str(folder)) for folder in places)
        reason = f" ({left[0]})" if left else ""
        raise InputError(f"there is no finished run below {names}{reason}: carry one out with coreplay run")
    return _distinct(found, left), left


def _not_begun(plan: Path) -> list[str]:
    """Say which runs of a sweep's plan have no folder yet; nothing if all have, or if no sweep was begun beside it."""
    runs = plan.parent / "runs"
    if not runs.is_dir():
        return []
    try:
        names = [planned.name for planned in Sweep.load(plan).runs]
    except InputError as error:
        return [f"what is planned can't be read: {error}"]
    missing = [name for name in names if not (runs / name).exists()]
    if len(missing) in (0, len(names)):
        return []
    some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    return [f"{len(missing)} of {len(names)} runs planned in {str(plan)!r} have not begun: {some}"]


def _read(path: Path) -> Finished:
    run = Run.load(path)
    finished = Finished(
        run,
        Config.read(path / CONFIG),
        {str(name): str(value) for name, value in read_json(path / "versions.json").items()},
        _lines(path / "coordination.jsonl"),
        _lines(path / "buffers.jsonl"),
    )
    # what a report uses must be there: better to leave a run out than to fail in the middle
    _ = finished.figure, finished.forgetting, finished.missing, finished.setting()
    for row in finished.coordination:
        _whole(row["period"], row["round"])
        _numbers(row["relaxed"], row["integer"])
    for row in finished.buffers:
        _whole(row["period"], row["kept"], row["distinct"], *row["arrived"])
    return finished


def _whole(*values: Any) -> None:
    if not all(type(value) is int and 0 <= value < 2**53 for value in values):
        raise ValueError(f"{values} must be whole numbers")


def _numbers(*values: Any) -> None:
    if not all(value is None or is_number(value) for value in values):
        raise ValueError(f"{values} must be numbers")


def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    return tuple(read_json_lines(path)) if path.exists() else ()


def _distinct(found: list[Finished], left: list[str]) -> list[Finished]:
    """Keep one of runs that a report can't tell apart; it is worth a word if their numbers differ."""
    kept: dict[Any, Finished] = {}
    for run in found:
        name = (tuple(run.setting().items()), run.label, run.budget, run.key)
        other = kept.setdefault(name, run)
        if other is not run and other.figure != run.figure:
            left.append(
                f"the run in {str(run.run.folder)!r} has the strategy, budget and seed of the one in "
                f"{str(other.run.folder)!r}, and other numbers"
            )
    return list(kept.values())
