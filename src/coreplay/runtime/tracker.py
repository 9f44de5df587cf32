"""Trackers: where else the metrics of a run go, besides its folder; and the registry of them.

A tracker is a class made with (config, folder) when a run begins or goes on. It is called with every event and closed
at the end. Yours is registered with `tracker` in any module, with the packages that it needs. Each imports its library
when it is made.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coreplay.errors import InputError, unknown
from coreplay.files import read_text, write_text
from coreplay.registry import Registry
from coreplay.runtime.config_toml import flatten
from coreplay.runtime.events import Event

if TYPE_CHECKING:
    from coreplay.runtime.config import Config

T = TypeVar("T", bound=type["Tracker"])
TAGS = {"round": "training", "evaluated": "test", "coordination": "coordination", "selected": "selection"}


class Tracker(ABC):
    """What a user subclasses."""

    packages: tuple[str, ...] = ()

    def __init__(self, config: "Config", folder: Path) -> None:
        self.config, self.folder = config, folder

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take note of an event."""

    def close(self) -> None:
        """Write what is left; the run may go on later."""
        return

    def step(self, event: Event) -> int:
        """Return the rounds trained when an event happened: the same number again if the run goes on from there."""
        return self.config.federated.rounds_before(event.period) + event.round


_registry: Registry[Callable[["Config", Path], Tracker]] = Registry("tracker")


def tracker(name: str, packages: tuple[str, ...] = ()) -> Callable[[T], T]:
    """Decorate a class to make it known under `name`; `packages` must be there for it to work."""

    def decorate(kind: T) -> T:
        kind.packages = packages
        _registry.register(name)(kind)
        return kind

    return decorate


def trackers() -> dict[str, str]:
    """Return the names of all trackers with a one-line description of each.

    >>> sorted(trackers())
    ['mlflow', 'tensorboard']
    """
    return _registry.descriptions()


def check_trackers(names: Iterable[str], *, installed: bool = False) -> None:
    """Raise an `InputError` for an unknown tracker, and, if asked, for one whose packages are missing."""
    for name in names:
        if name not in _registry:
            raise unknown("tracker", name, trackers())
        packages = getattr(_registry[name], "packages", ())
        missing = [package for package in packages if installed and find_spec(package) is None]
        if missing:
            raise InputError(
                f"tracker {name!r} needs {' and '.join(missing)}: install it with pip install 'coreplay[trackers]'"
            )


def make_tracker(name: str, config: "Config", folder: Path) -> Tracker:
    """Return a tracker for the run in this folder."""
    return _registry[name](config, folder)


def _numbers(event: Event) -> dict[str, Any]:
    """Return the facts of an event that can be drawn; none of an event that is no step of the run."""
    facts = event.facts if event.kind in TAGS else {}
    return {name: value for name, value in facts.items() if isinstance(value, int | float)}


@tracker("mlflow", ("mlflow",))
class MLflow(Tracker):
    """Log parameters, losses and figures to MLflow: `mlflow.db` in the run folder, or MLFLOW_TRACKING_URI."""

    def __init__(self, config: "Config", folder: Path) -> None:
        super().__init__(config, folder)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would call home
        from mlflow import MlflowClient
        from mlflow.entities import Param

        folder = folder.absolute()
        self._client = client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db")
        known = folder / "mlflow.run"  # names the MLflow run, for the day the run goes on
        if known.exists():
            self._run = read_text(known).strip()
            return
        found = client.get_experiment_by_name("coreplay")
        place = (folder / "mlflow").as_uri()
        number = found.experiment_id if found else client.create_experiment("coreplay", artifact_location=place)
        self._run = client.create_run(number, run_name=folder.name).info.run_id
        values = [Param(name, str(value)[:500]) for name, value in flatten(config.model_dump()).items()]
        client.log_batch(self._run, params=values)
        write_text(known, self._run + "\n")

    def __call__(self, event: Event) -> None:
        """Log the numbers of an event at its step."""
        if event.kind == "begin":
            self._client.update_run(self._run, status="RUNNING")
        elif event.kind == "end":
            self._client.set_terminated(self._run, "FINISHED")
        for name, value in _numbers(event).items():
            self._client.log_metric(self._run, f"{event.kind}/{name}", value, step=self.step(event))


@tracker("tensorboard", ("tensorboard",))
class TensorBoard(Tracker):
    """Write losses and figures as TensorBoard's event files, into `tensorboard` in the run folder."""

    _writer: Any = None

    def __call__(self, event: Event) -> None:
        """Write the numbers of an event; one that goes on takes back what came after its checkpoint."""
        if event.kind == "begin":
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=self.step(event))
        for name, value in _numbers(event).items():
            self._writer.add_scalar(f"{TAGS[event.kind]}/{name}", value, self.step(event))

    def close(self) -> None:
        """End the event file."""
        if self._writer is not None:
            self._writer.close()
