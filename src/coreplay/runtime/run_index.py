"""The runs below a folder, and how far each is."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coreplay.errors import InputError
from coreplay.runtime.observers import is_running
from coreplay.runtime.run_dir import CONFIG, FAILURE, RunFolder


@dataclass(frozen=True)
class Listed:
    """One run: `state` is finished, running, stopped, not begun, failed (in a sweep) or damaged; `problem` says why."""

    name: str
    state: str
    strategy: str = ""
    budget: float | None = None
    seed: int | None = None
    period: int | None = None  # where it is, from 0: the next round to be trained
    round: int | None = None
    metric: str = ""
    figure: float | None = None  # of a finished run: after its last period, on all test sets
    missing: tuple[str, ...] = ()  # clients whose test sets are not in the figure
    seconds: float | None = None
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def list_runs(folder: Path | str) -> list[Listed]:
    """Return all runs below a folder, by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {str(folder)!r}: name one that holds runs")
    found = {path.parent for name in (CONFIG, FAILURE) for path in folder.rglob(name)}
    return [_listed(path, folder) for path in sorted(found)]


def _listed(path: Path, below: Path) -> Listed:
    name = str(path.relative_to(below)) if path != below else path.name
    try:
        return _read(path, name)
    except Exception as error:  # whatever is wrong with one folder, the others are listed
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        return Listed(name, "damaged", problem=reason)


def _read(path: Path, name: str) -> Listed:
    place = RunFolder(path)
    if not (path / CONFIG).exists():
        return Listed(name, "failed", problem=place.failure())  # in a sweep, before its folder was made
    config = place.config()
    found = Listed(name, "", config.replay.strategy, config.replay.usual_budget(), config.seed)
    summary = place.summary()
    if summary is not None:
        figures = summary["metrics"][summary["metric"]]
        return replace(
            found,
            state="finished",
            metric=summary["metric"],
            figure=figures[-1],
            missing=tuple(summary["missing"].get(str(len(figures) - 1), ())),
            seconds=sum(summary["seconds"].values()),
        )
    reached, problem = place.checkpoint(), place.failure()
    state = "running" if is_running(path) else "failed" if problem else "stopped" if reached else "not begun"
    found = replace(found, state=state, problem=problem)
    if reached is None:
        return found
    progress = reached.progress
    return replace(found, period=progress.period, round=progress.round, seconds=sum(progress.seconds.values()))
