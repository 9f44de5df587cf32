"""The run: for each period, federated rounds on new data and buffers, measuring, choosing what to keep.

It decides what happens in which order and what goes into the records; the engine carries it to the clients. A run goes
on from its last checkpoint as if it had never stopped: every random choice comes from (seed, client, period, purpose).
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.errors import InputError
from coreplay.federated.algorithm import make_algorithm
from coreplay.federated.config import Config
from coreplay.federated.engine import Census, Engine
from coreplay.federated.events import Event, Observer
from coreplay.federated.flat import Vector
from coreplay.federated.folder import SUMMARY, Checkpoint, Progress, RunFolder
from coreplay.federated.joint import Terms, Told, negotiate
from coreplay.federated.site import contribution_length, run_name
from coreplay.federated.strategy import NONE, is_coordinated
from coreplay.files import read_json_lines, reading
from coreplay.seeding import generator
from coreplay.tasks import PeriodMatrix, Task, relative_change

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
            return cls(place.path, summary, _matrix(rows, summary))

    @property
    def metrics(self) -> dict[str, list[float]]:
        """The figures after each period."""
        found: dict[str, list[float]] = self.summary["metrics"]
        return found


def check(config: Config, stream: Census) -> None:
    """Raise an `InputError` for what can be known to fail before any work is done."""
    periods = config.periods or stream.periods
    if periods > stream.periods:
        raise InputError(f"periods = {periods}: the stream has {stream.periods}")
    tests = stream.counts("test").sum(axis=0)[:periods]
    if not tests.all():
        raise InputError(f"no test data in {_periods(tests)}: set a share of test data in the stream's options")
    trains = stream.counts("train").sum(axis=0)[:periods]
    if not trains.all():
        raise InputError(
            f"no training data in {_periods(trains)}: make fewer or longer periods in the stream's options"
        )
    for client in config.replay.client_budgets:
        if client not in stream.clients:
            raise InputError(f"replay.client_budgets names client {client!r}, which the stream does not have")
    if config.baseline is not None and not (Path(config.baseline) / SUMMARY).exists():
        raise InputError(f"baseline = {config.baseline!r}: there is no finished run in that folder")


def _periods(counts: Any) -> str:
    """Name the periods that have nothing, from 1 as a run shows them."""
    return f"period {', '.join(str(t + 1) for t in np.flatnonzero(counts == 0))} of {len(counts)}"


class Conductor:
    """Carries out one run on an engine."""

    def __init__(
        self,
        config: Config,
        stream: Census,
        task: Task,
        engine: Engine,
        folder: RunFolder,
        start: Vector,
        trainable: int,
        observer: Observer,
    ) -> None:
        self.config, self.stream, self.task, self.engine, self.folder = config, stream, task, engine, folder
        self._observer, self._metric = observer, task.metric
        self._algorithm = make_algorithm(config.federated.algorithm, config.federated.options)
        self._periods = config.periods or stream.periods
        self._counts, self._test_counts = stream.counts("train"), stream.counts("test")
        self._numbers = {client: number for number, client in enumerate(stream.clients)}
        found = folder.checkpoint()
        self._trainable = trainable
        self._now = found or Checkpoint(Progress(), start, self._algorithm.begin(start[:trainable]))
        if self._now.values.shape != start.shape:
            raise InputError(
                f"checkpoint in {str(folder.path)!r} has {self._now.values.size} numbers, the model has {start.size}: "
                "was it made with another model or another version of a library?"
            )
        self._baseline = self._read_baseline()
        self._saved = time.monotonic()

    def _read_baseline(self) -> dict[str, Any]:
        """Return the summary of the run that this one is compared with; empty if there is none."""
        if self.config.baseline is None:
            return {}
        found = RunFolder(Path(self.config.baseline)).summary() or {}
        if len(found.get("metrics", {}).get(self._metric.name, [])) != self._periods:
            raise InputError(
                f"baseline = {self.config.baseline!r}: that run has no {self._metric.name} after each of "
                f"{self._periods} periods, so it can't be compared with this one"
            )
        return found

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return self._now.progress

    def run(self) -> Run:
        """Go from the last checkpoint to the end."""
        progress = self.progress
        rounds = [self.config.federated.rounds_of(period) for period in range(self._periods)]
        self._tell("begin", rounds=rounds, strategy=self.config.replay.strategy)
        self.engine.rewind(progress.period - 1)
        while progress.period < self._periods:
            if not progress.measured:
                self._train()
                self._measure()
            if progress.period + 1 < self._periods:  # after the last period nobody asks for the buffers
                self._choose()
            progress.period, progress.round, progress.measured = progress.period + 1, 0, False
            self._save()
        return self._finish()

    def _train(self) -> None:
        progress, config = self.progress, self.config.federated
        period = progress.period
        while progress.round < config.rounds_of(period):
            clients = self._drawn(period, progress.round)
            with self._timed("training"):
                update = self.engine.train(period, progress.round, clients, self._now.values, self._watch(len(clients)))
                if not update.samples:
                    raise InputError(f"no client answered in period {period}, round {progress.round}: {update.missing}")
                mean = update.change / update.change.dtype.type(update.samples)
                with np.errstate(over="ignore", invalid="ignore"):
                    length = np.dot(mean, mean)
                if not np.isfinite(length):
                    raise InputError(
                        f"the clients' mean change in period {period}, round {progress.round} has NaN or infinity: "
                        f"lower federated.learning_rate (now {config.learning_rate:g})"
                    )
                self._update(mean)
            size = self._now.values.nbytes
            progress.bytes_down += size * len(clients)
            progress.bytes_up += size * (len(clients) - len(update.missing))
            loss = update.loss.mean
            facts: dict[str, Any] = {"clients": len(clients), "samples": update.samples, "loss": loss}
            if update.missing:
                facts["missing"] = dict(update.missing)
            progress.rounds.append({"period": period, "round": progress.round} | facts)
            self._tell("round", **facts)
            progress.round += 1
            if time.monotonic() - self._saved > self.config.engine.checkpoint_seconds:
                self._save()

    def _update(self, mean: Vector) -> None:
        """Let the algorithm move the parameters; running statistics are no parameters and become the clients' mean."""
        before, n = self._now.values, self._trainable
        self._now.values = before + mean
        self._now.values[:n], self._now.state = self._algorithm.update(before[:n], mean[:n], self._now.state)

    def _drawn(self, period: int, round: int) -> list[str]:
        """Draw the clients of a round out of those with new data, in the stream's order."""
        able = np.flatnonzero(self._counts[:, period])
        most = self.config.federated.clients_per_round
        if most is not None and most < len(able):
            rng = generator(self.config.seed, period, "clients", round)
            able = np.sort(rng.choice(able, most, replace=False))
        return [self.stream.clients[k] for k in able]

    def _measure(self) -> None:
        progress = self.progress
        with self._timed("evaluation"):
            found = self.engine.evaluate(self._now.values, self._watch(0))
        missing = [self._numbers[client] for client in sorted(found.missing)]
        for test_period, tally in enumerate(found.sums[: self._periods]):
            lacking = [k for k in missing if self._test_counts[k, test_period]]
            progress.metrics.append(
                {
                    "period": progress.period,
                    "test_period": test_period,
                    "total": tally.total,
                    "weight": tally.weight,
                    self._metric.name: self._metric.figure(tally.mean) if tally.weight else None,
                }
                | ({"missing": [self.stream.clients[k] for k in lacking]} if lacking else {})
            )
        progress.measured = True
        self._save()
        without = {"missing": sorted(found.missing)} if found.missing else {}
        self._tell("evaluated", **{self._metric.name: float(self._figures().all_period[-1])}, **without)

    def _choose(self) -> None:
        period, strategy = self.progress.period, self.config.replay.strategy
        if strategy == NONE:
            return
        clients = [self.stream.clients[k] for k in np.flatnonzero(self._counts[:, period])]
        with self._timed("selection"):
            if is_coordinated(strategy):
                self._coordinate(period, clients)
            else:
                self.engine.choose(period, clients, self._now.values, self._watch(len(clients)))
        held = self.engine.holdings()
        if held is not None:
            self.progress.buffers.append({"period": period} | asdict(held))
        self._tell("selected", clients=len(clients), kept=sum(self.engine.sizes().values()))

    def _coordinate(self, period: int, clients: Sequence[str]) -> None:
        """Let clients choose jointly, and write down what the server learnt of it."""
        replay, progress = self.config.replay, self.progress
        values, watch = self._now.values, self._watch(len(clients))

        def tell(told: Told) -> None:
            progress.bytes_up, progress.bytes_down = (
                progress.bytes_up + told.bytes_up,
                progress.bytes_down + told.bytes_down,
            )
            latest = told.latest
            facts = {"answered": latest.answered, "relaxed": latest.relaxed, "integer": latest.integer}
            sent = {"bytes_up": told.bytes_up, "bytes_down": told.bytes_down}
            row: dict[str, Any] = {"period": period, "round": latest.round} | sent | facts
            refused = {"refused": [asdict(receipt) for receipt in told.refused]} if told.refused else {}
            progress.coordination.append(row | refused)
            self._tell("coordination", coordination_round=latest.round, **facts)

        about = (
            run_name(self.config),
            period,
            replay.coordination_rounds,
            contribution_length(self.config, self.task.model),
        )
        terms = Terms(*about, replay.strategy, replay.options, replay.secure)
        broadcast = negotiate(self.engine, terms, self._taking(period, clients), values, watch, tell)
        self.engine.settle(period, clients, values, broadcast, watch)

    def _taking(self, period: int, clients: Sequence[str]) -> dict[str, int]:
        """Return the budgets of the clients that have something to choose and are not too small to take part."""
        replay, held = self.config.replay, self.engine.sizes()
        found = {}
        for client in clients:
            counts = self._counts[self._numbers[client]]
            budget = replay.budget_of(client, int(counts[: period + 1].sum()))
            if int(counts[period]) + held.get(client, 0) > max(budget, replay.minimum_pool - 1):
                found[client] = budget
        return found

    def _figures(self) -> PeriodMatrix:
        rows = self.progress.metrics
        totals, weights = (_by_period(rows, name) for name in ("total", "weight"))
        return PeriodMatrix.of_sums(totals, weights, self._metric, _test_sets(rows))

    def _finish(self) -> Run:
        progress, matrix = self.progress, self._figures()
        name, missing = self._metric.name, _missing(progress.metrics)
        metrics = {name: _or_none(matrix.all_period), f"{name}_mean_over_periods": _or_none(matrix.period_mean)}
        metrics["forgetting"] = _or_none(matrix.mean_forgetting())
        metrics["all_period_forgetting"] = _or_none(matrix.all_period_forgetting())
        if self._baseline:
            before = self._baseline
            changes = relative_change(matrix.all_period, before["metrics"][name]).tolist()
            metrics["relative_change"] = [  # none between figures on different test sets
                change if missing.get(str(t)) == before["missing"].get(str(t)) else None
                for t, change in enumerate(changes)
            ]
        summary = {
            "strategy": self.config.replay.strategy,
            "budget": self.config.replay.usual_budget(),
            "seed": self.config.seed,
            "metric": name,
            "lower_is_better": self._metric.lower_is_better,
            "compared_by_ratio": self._metric.compared_by_ratio,
            "metrics": metrics,
            "missing": missing,
            "bytes_up": progress.bytes_up,
            "bytes_down": progress.bytes_down,
            "seconds": {phase: round(spent, 3) for phase, spent in progress.seconds.items()},
        }
        self.folder.finish(progress, summary)
        self._tell("end", **summary)
        return Run(self.folder.path, summary, matrix)

    def _save(self) -> None:
        with self._timed("checkpoints"):
            self._now.buffers = self.engine.fingerprint()
            self.folder.save(self._now)
        self._saved = time.monotonic()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        seconds = self.progress.seconds
        seconds[phase] = seconds.get(phase, 0.0) + time.monotonic() - began

    def _watch(self, of: int) -> Any:
        done = 0

        def watch(facts: Any) -> None:
            nonlocal done
            done += facts.get("clients", 0)
            kind = "warning" if "text" in facts else "client"
            self._tell(kind, done=done, of=of, **facts)

        return watch

    def _tell(self, kind: str, **facts: Any) -> None:
        self._observer(Event(kind, self.progress.period, self.progress.round, facts))


def _matrix(rows: Rows, summary: dict[str, Any]) -> PeriodMatrix:
    """Return the figures that a finished run wrote; how sums become figures is known to its task alone."""
    name, metrics = summary["metric"], summary["metrics"]
    values = _by_period(rows, name)
    if len(values) != len(metrics[name]):
        raise ValueError(f"it has {len(values)} periods, the summary has {len(metrics[name])}")
    return PeriodMatrix(
        values,
        np.array(metrics[name], dtype=np.float64),
        np.array(metrics[f"{name}_mean_over_periods"], dtype=np.float64),
        summary["lower_is_better"],
        _test_sets(rows),
    )


def _by_period(rows: Rows, name: str) -> Floats:
    """Lay out a column of `metrics.jsonl`: one row per period trained, one column per period tested."""
    return np.array([row[name] for row in rows], dtype=np.float64).reshape(-1, 1 + rows[-1]["test_period"])


def _test_sets(rows: Rows) -> NDArray[np.int64]:
    """Give each set of clients whose test samples are missing from a figure a number; 0 if none is missing."""
    numbers: dict[tuple[str, ...], int] = {(): 0}
    found = [numbers.setdefault(tuple(row.get("missing", ())), len(numbers)) for row in rows]
    return np.array(found, dtype=np.int64).reshape(-1, 1 + rows[-1]["test_period"])


def _missing(rows: Rows) -> dict[str, list[str]]:
    """Return, by period trained (from 0), the clients whose test sets are not in the figures."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if "missing" in row:
            found.setdefault(str(row["period"]), set()).update(row["missing"])
    return {period: sorted(clients) for period, clients in found.items()}


def _or_none(values: Floats) -> list[float | None]:
    """Return the values with None for NaN, which JSON does not have."""
    return [None if math.isnan(value) else value for value in values.tolist()]
