"""The run folder: everything that a run leaves, each file whole or absent.

config.toml            as resolved, with comments
plugins/               copies of the plugins that are files
versions.json          of Python, coreplay and what it builds on
stream.json            how much data the stream had when the run began (not with Flower)
checkpoint.safetensors the model, the server's state, and how far the run is
buffers.sqlite         what the clients keep (not with Flower)
metrics.jsonl          one line per period and test set; metrics.parquet: the same
rounds.jsonl           one line per training round; coordination.jsonl: one per coordination round
buffers.jsonl          one line per period: how many samples of which age all clients together keep, how many different
summary.json           all-period figures by period, bytes exchanged, time by phase
run.log                what happened when
failure.txt            why the run failed, if it did, in a sweep
"""

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from coreplay.errors import InputError
from coreplay.files import (
    atomic_write,
    copy,
    is_half_written,
    make_folder,
    read_json,
    read_text,
    reading,
    write_json,
    write_text,
)
from coreplay.learning.context import State
from coreplay.learning.parameter_vector import Vector
from coreplay.plugins import FOLDER as PLUGINS
from coreplay.plugins import keep_plugins
from coreplay.runtime.config import Config
from coreplay.runtime.engine import ClientRegistry

PACKAGES = ("coreplay", "torch", "transformers", "tokenizers", "numpy", "numba", "scipy", "pyarrow", "safetensors")
TABLES = ("metrics", "rounds", "coordination", "buffers")
CHECKPOINT, CONFIG, FAILURE, SUMMARY = "checkpoint.safetensors", "config.toml", "failure.txt", "summary.json"
STREAM = "stream.json"


@dataclass
class Progress:
    """How far a run is: `round` rounds of `period` are trained; `measured` says that the period's model is as well."""

    period: int = 0
    round: int = 0
    measured: bool = False
    metrics: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    coordination: list[dict[str, Any]] = field(default_factory=list)
    buffers: list[dict[str, Any]] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, given: dict[str, Any]) -> "Progress":
        """Make a progress of what a checkpoint holds; a value of the wrong kind is refused."""
        for name, usual in asdict(cls()).items():
            if type(given.get(name, usual)) is not type(usual):
                raise ValueError(f"its {name} is a {type(given[name]).__name__}, not a {type(usual).__name__}")
        found = cls(**given)
        if not all(isinstance(row, dict) for name in TABLES for row in getattr(found, name)):
            raise ValueError("a row of its tables is not an object")
        if min(found.period, found.round) < 0 or not all(map(_is_finite, found.seconds.values())):
            raise ValueError("its period, round or seconds are negative, or not finite numbers")
        return found


@dataclass
class Checkpoint:
    """A moment of a run from which it goes on as if it had never stopped.

    `buffers` is the fingerprint of the clients' buffers and states at that moment, where the engine holds them;
    `period_start` the model at the start of the period, if a learning hook needs it.
    """

    progress: Progress
    values: Vector
    state: State
    buffers: str = ""
    period_start: Vector | None = None


class RunFolder:
    """A run's folder; `create` makes a new one, `open` finds an old one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | str, config: Config) -> "RunFolder":
        """Make a folder for a new run; one that holds a run already is refused."""
        cls.check_free(path)
        folder = cls(Path(path))
        make_folder(folder.path.parent)
        make_folder(folder.path, private=True)
        write_json(folder.path / "versions.json", versions())
        kept = keep_plugins(config.plugins, folder.path)
        write_text(folder.path / CONFIG, config.model_copy(update={"plugins": kept}).toml())
        return folder

    @staticmethod
    def check_free(path: Path | str) -> None:
        """Raise an `InputError` if a new run can't have this folder."""
        path = Path(path)
        if (path / CONFIG).exists():
            raise InputError(f"{str(path)!r} holds a run already: go on with --resume, or choose another folder")
        if path.exists() and (not path.is_dir() or any(not _half_made(entry.name) for entry in path.iterdir())):
            raise InputError(f"{str(path)!r} exists and is no run: choose another folder")

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        """Open the folder of a run that was begun."""
        if not (Path(path) / CONFIG).exists():
            raise InputError(f"{str(path)!r} holds no run: there is no {CONFIG} in it")
        return cls(Path(path))

    def config(self) -> Config:
        """Return the configuration as it was resolved when the run began; its plugins are the run's own copies."""
        return Config.read(self.path / CONFIG).with_plugins(self.path)

    def checkpoint(self) -> Checkpoint | None:
        """Return where the run is; None if it has not come to its first checkpoint."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            with reading(path, "safetensors"):
                with safe_open(path, framework="numpy") as file:
                    arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                    about = file.metadata()
                if about.pop("digest") != _digest(arrays, about):
                    raise ValueError("its contents are not what was written")
                if not all(np.isfinite(array).all() for array in arrays.values()):
                    raise ValueError("it holds NaN or infinity")
                progress = Progress.read(json.loads(about["progress"]))
                values, start, buffers = arrays.pop("values"), arrays.pop("period_start", None), about["buffers"]
        except InputError as error:
            raise InputError(
                f"checkpoint {str(path)!r} is damaged: {error}; delete it to start the run again with --resume"
            ) from None
        return Checkpoint(progress, values, arrays, buffers, start)

    def start_from(self, checkpoint: Path) -> None:
        """Begin where another run was when it wrote this checkpoint: its start must be what this one's would be.

        A damaged one is of no use to anybody: it is deleted, and the run begins at its own beginning.
        """
        copy(checkpoint, self.path / CHECKPOINT, private=True)
        try:
            self.checkpoint()
        except InputError:
            (self.path / CHECKPOINT).unlink()
            checkpoint.unlink(missing_ok=True)

    def check_stream(self, stream: ClientRegistry, periods: int | None) -> None:
        """Record how much data the stream has up to this period; raise an `InputError` if the record says otherwise."""
        now = {"clients": len(stream.clients), "periods": periods or stream.periods}
        for split, name in (("train", "training samples"), ("test", "test samples")):
            now[name] = int(stream.counts(split)[:, : now["periods"]].sum())
        if not (self.path / STREAM).exists():
            write_json(self.path / STREAM, now)
            return
        then = read_json(self.path / STREAM)
        if not all(isinstance(then.get(key), int) for key in now):
            raise InputError(f"{str(self.path / STREAM)!r} is damaged: delete it if the data is still the same")
        changed = [f"{key} {then[key]} to {n} ({n - then[key]:+d})" for key, n in now.items() if n != then[key]]
        if changed:
            raise InputError(
                f"the data of the run in {str(self.path)!r} has changed since it began: {', '.join(changed)}; a run "
                "does not take in new data: start a new run in another folder"
            )

    def failure(self) -> str:
        """Return why the run failed when it was last tried in a sweep, in a line; nothing if it did not."""
        path = self.path / FAILURE
        return next(iter(read_text(path).splitlines()), "") if path.exists() else ""

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished run; None if it is not finished."""
        path = self.path / SUMMARY
        if not path.exists():
            return None
        with reading(path, "a summary"):
            return _checked(read_json(path))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint in one step, and then the tables that follow from it."""
        progress = checkpoint.progress
        arrays = {"values": np.asarray(checkpoint.values), **checkpoint.state}
        if checkpoint.period_start is not None:
            arrays["period_start"] = np.array(checkpoint.period_start)  # safetensors writes no array twice
        about = {"progress": json.dumps(asdict(progress)), "buffers": checkpoint.buffers}
        with atomic_write(self.path / CHECKPOINT, private=True) as temporary:
            save_file(arrays, temporary, metadata=about | {"digest": _digest(arrays, about)})
        for name in TABLES:
            rows = getattr(progress, name)
            if rows or (self.path / f"{name}.jsonl").exists():
                write_text(self.path / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def finish(self, progress: Progress, summary: dict[str, Any]) -> None:
        """Write the Parquet table and the summary."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with atomic_write(self.path / "metrics.parquet") as temporary:
            pq.write_table(pa.Table.from_pylist(progress.metrics), temporary)
        write_json(self.path / SUMMARY, summary)


def _digest(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> str:
    """Return the digest of everything in a checkpoint."""
    digest = hashlib.blake2b(json.dumps(sorted(about.items())).encode(), digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.data)
    return digest.hexdigest()


def _checked(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary; raise if something in it that listings and reports use is missing or of another kind."""
    if not {"compared_by_ratio", "missing"} <= summary.keys():
        raise ValueError("it was written by an earlier version of coreplay: carry out the run again")
    metric, metrics = summary["metric"], summary["metrics"]
    flags = summary["lower_is_better"], summary["compared_by_ratio"]
    if not (isinstance(metric, str) and all(isinstance(flag, bool) for flag in flags)):
        raise ValueError("its metric has no name, or does not say how figures are compared")
    figures = metrics[metric]
    for period, clients in summary["missing"].items():
        if period not in map(str, range(len(figures))):
            raise ValueError(f"it has no period {period[:20]!r}, after which clients are missing")
        if not (isinstance(clients, list) and all(isinstance(client, str) for client in clients)):
            raise ValueError("what is missing must be lists of clients")
    if not figures or any(len(column) != len(figures) for column in metrics.values()):
        raise ValueError("its metrics have no figures, or not one per period")
    numbers = [value for column in metrics.values() for value in column if value is not None] + figures
    spent = [summary["bytes_up"], summary["bytes_down"], *summary["seconds"].values()]
    if not all(map(is_number, numbers)) or not all(map(_is_finite, spent)):
        raise ValueError("it holds something else where a number must be")
    return summary


def is_number(value: Any) -> bool:
    """Return whether a value from a file is a number that fits into a float; infinity and NaN do.

    >>> is_number(3), is_number(float("nan")), is_number(True), is_number("3"), is_number(10**400)
    (True, True, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 2**1023


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _half_made(name: str) -> bool:
    """Say whether a file may be there because `create` was killed on its way."""
    return name in ("versions.json", PLUGINS, FAILURE) or is_half_written(name)


def versions() -> dict[str, str]:
    """Return the versions of what a result depends on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found
