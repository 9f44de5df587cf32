"""The trainer: for each period, federated rounds on new data and buffers, evaluation, choosing what to keep.

It decides what happens in which order and what goes into the records; the engine carries its requests to the clients. A
run goes on from its last checkpoint as if it had never stopped: every random choice comes from (seed, client, period,
purpose).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.coordination import CoordinationSpec, RoundResult, takes_part
from coreplay.errors import InputError
from coreplay.learning import Methods, RoundInfo
from coreplay.runtime import keeping
from coreplay.runtime.aggregation import Update, Weights, evaluate, sample_round, sum_over_clients
from coreplay.runtime.client import contribution_length, run_name
from coreplay.runtime.config import Config
from coreplay.runtime.engine import ClientRegistry, Engine
from coreplay.runtime.events import Answered, Event, Observe, Observer, Problem
from coreplay.runtime.requests import CHANGE, MODEL, PERIOD_START, Evaluate, FinishPeriod, Train
from coreplay.runtime.result import Run, by_period, missing_clients, or_none, test_sets
from coreplay.runtime.run_dir import SUMMARY, Checkpoint, Progress, RunFolder
from coreplay.runtime.strategy import ALL, NONE, is_coordinated
from coreplay.tasks import PeriodMatrix, Task, relative_change

Vector = NDArray[np.floating]


def check(config: Config, stream: ClientRegistry) -> None:
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


class Trainer:
    """Carries out one run on an engine, from the checkpoint in its folder if there is one.

    `start` is the first model; its first `trainable` numbers are trainable parameters. `observer` gets every event.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        engine: Engine,
        folder: RunFolder,
        start: Vector,
        trainable: int,
        observer: Observer,
    ) -> None:
        self.config, self.task, self.engine, self.folder = config, task, engine, folder
        self.registry = engine.registry
        self._observer, self._metric = observer, task.metric
        self._methods = config.methods()
        self._weights = Weights(config.federated.max_weight_ratio)
        self._periods = config.periods or self.registry.periods
        self._counts, self._test_counts = self.registry.counts("train"), self.registry.counts("test")
        self._numbers = {client: number for number, client in enumerate(self.registry.clients)}
        self._trainable = trainable
        found = folder.checkpoint()
        self._now = found or Checkpoint(Progress(), start, {})
        self._now.state = {**self._methods.init(start[:trainable]), **self._now.state}
        if self._methods.keep_period_start and self._now.period_start is None:
            self._now.period_start = self._now.values
        if self._now.values.shape != start.shape:
            raise InputError(
                f"checkpoint in {str(folder.path)!r} has {self._now.values.size} numbers, the model has {start.size}: "
                "was it made with another model or another version of a library?"
            )
        self._baseline = self._read_baseline()
        self._saved = time.monotonic()
        self._saved_at = (self.progress.period, self.progress.round)

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
        self._emit("begin", rounds=rounds, strategy=self.config.replay.strategy)
        self.engine.rewind(progress.period - 1)
        while progress.period < self._periods:
            if not progress.measured:
                self._train()
                methods = self._methods.during(progress.period)
                self._now.values = methods.finish_model(self._now.values, self._now.period_start)
                self._evaluate()
            if progress.period + 1 < self._periods:  # nobody asks for anything after the last period
                self._finish_period()
                self._choose()
            progress.period, progress.round, progress.measured = progress.period + 1, 0, False
            if self._methods.keep_period_start:
                self._now.period_start = self._now.values
            self._save()
        return self._finish()

    def _train(self) -> None:
        progress = self.progress
        while progress.round < self.config.federated.rounds_of(progress.period):
            self._train_round(self._sampled(progress.period, progress.round))
            progress.round += 1
            if time.monotonic() - self._saved > self.config.engine.checkpoint_seconds:
                self._save()

    def _train_round(self, clients: Sequence[str]) -> None:
        """Let these clients train, and update the model by what they return."""
        progress, now, n = self.progress, self._now, self._trainable
        methods = self._methods.during(progress.period)
        names = {CHANGE: now.values.size} | dict.fromkeys(methods.round_sums, n)
        with self._timed("training"):
            where = f"period {progress.period}, round {progress.round}"
            update = self._summed(Train, clients, methods, names, f"training, {where}")
            mean = update.sums[CHANGE] / update.sums[CHANGE].dtype.type(update.weight)
            with np.errstate(over="ignore", invalid="ignore"):
                length = np.dot(mean, mean)
            if not np.isfinite(length):
                raise InputError(
                    f"the clients' mean change in {where} has NaN or infinity: lower federated.learning_rate "
                    f"(now {self.config.federated.learning_rate:g})"
                )
            before = now.values
            now.values = before + mean  # running statistics are not parameters and become the clients' mean
            about = (update.sums, now.state, self._info(update))
            now.values[:n], now.state = methods.update(before[:n], mean[:n], *about)
        facts: dict[str, Any] = {"clients": len(clients), "samples": update.weight, "loss": update.loss.mean}
        if update.missing:
            facts["missing"] = dict(update.missing)
        progress.rounds.append({"period": progress.period, "round": progress.round} | facts)
        self._emit("round", **facts)

    def _summed(
        self,
        kind: type[Train | FinishPeriod],
        clients: Sequence[str],
        methods: Methods,
        names: Mapping[str, int],
        what: str,
    ) -> Update:
        """Send a request to clients, and return the sums of the vectors that they send back."""
        arrays, observe = self._arrays(methods), self._observe(len(clients))
        request = kind(**self._stamp(), arrays=arrays, keep_from=self._saved_at)
        about = (self._samples, names, self.config.engine.aggregation_groups, self._weights, observe, what)
        update = sum_over_clients(self.engine, request, clients, *about)
        answered = len(clients) - len(update.missing)
        self.progress.bytes_down += len(clients) * sum(array.nbytes for array in arrays.values())
        self.progress.bytes_up += answered * self._now.values.itemsize * sum(names.values())
        return update

    def _arrays(self, methods: Methods) -> dict[str, Vector]:
        """Return what clients need to train: the model, what hooks send, and perhaps the period's first model."""
        arrays = {MODEL: self._now.values, **methods.broadcast(self._now.state)}
        if methods.needs_period_start and self._now.period_start is not None:
            arrays[PERIOD_START] = self._now.period_start
        return arrays

    def _stamp(self) -> dict[str, Any]:
        return {"run": self.engine.run_id, "period": self.progress.period, "round": self.progress.round}

    def _samples(self, client: str) -> int:
        """Return how many samples a client trains on in this period."""
        return int(self._counts[self._numbers[client], self.progress.period]) + self.engine.sizes.get(client, 0)

    def _info(self, update: Update) -> RoundInfo:
        able = self._training(self.progress.period)
        counts = {client: self._samples(client) for client in able}
        largest = self._weights.largest(counts)
        total = sum(min(count, largest) for count in counts.values())
        period, round = self.progress.period, self.progress.round
        step, parameters = self.config.federated.step(period, round), self._now.values[: self._trainable]
        return RoundInfo(update.weight, total, len(able), period, round, step, parameters)

    def _able(self, period: int) -> list[str]:
        """Return the clients with new data in a period, in the registry's order."""
        return [self.registry.clients[k] for k in np.flatnonzero(self._counts[:, period])]

    def _training(self, period: int) -> list[str]:
        """Return the clients that may train in a period: those with new data, and perhaps those with a buffer only."""
        if not self.config.federated.buffer_only_clients:
            return self._able(period)
        sizes, counts = self.engine.sizes, self._counts[:, period]
        return [client for k, client in enumerate(self.registry.clients) if counts[k] or sizes.get(client)]

    def _sampled(self, period: int, round: int) -> list[str]:
        """Sample the clients of a round from those that may train."""
        able, most = self._training(period), self.config.federated.clients_per_round
        numbers = np.array([self._numbers[client] for client in able])
        if most is not None and most < len(numbers):
            sampling = self.config.federated.sampling
            numbers = np.sort(sample_round(numbers, most, sampling, (self.config.seed, period), round))
        return [self.registry.clients[k] for k in numbers]

    def _evaluate(self) -> None:
        progress = self.progress
        request = Evaluate(**self._stamp(), arrays={MODEL: self._now.values})
        with self._timed("evaluation"):
            self.engine.discover(observe := self._observe(0), progress.period)
            found = evaluate(self.engine, request, self._periods, self.task.largest_weight(), observe)
        name, missing = self._metric.name, sorted(found.missing)
        for test_period, summed in enumerate(found.sums):
            figure = self._metric.figure(summed.mean) if summed.weight else None
            row: dict[str, Any] = {"period": progress.period, "test_period": test_period}
            row |= {"total": summed.total, "weight": summed.weight, name: figure}
            lacking = [client for client in missing if self._test_counts[self._numbers[client], test_period]]
            progress.metrics.append(row | ({"missing": lacking} if lacking else {}))
        progress.measured = True
        self._save()
        without = {"missing": missing} if missing else {}
        self._emit("evaluated", **{name: float(self._figures().all_period[-1])}, **without)

    def _finish_period(self) -> None:
        """Let learning hooks finish the period, if any does something then."""
        if not self._methods.overriding("finish_period"):
            return
        period = self.progress.period
        with self._timed("training"):
            names = dict.fromkeys(self._methods.period_sums, self._trainable)
            update = self._summed(FinishPeriod, self._able(period), self._methods, names, f"end of period {period}")
            self._now.state = self._methods.end_period(update.sums, self._now.state, self._info(update))

    def _choose(self) -> None:
        period, strategy = self.progress.period, self.config.replay.strategy
        if strategy == NONE:
            return
        clients = self._able(period)
        with self._timed("selection"):
            if is_coordinated(strategy):
                self._coordinate(period, clients)
            else:
                arrays, observe = {MODEL: self._now.values}, self._observe(len(clients))
                keeping.select(self.engine, period, clients, arrays, self._most_kept, observe)
        held = self.engine.buffer_stats()
        if held is not None:
            self.progress.buffers.append({"period": period} | asdict(held))
        self._emit("selected", clients=len(clients), kept=sum(self.engine.sizes.values()))

    def _coordinate(self, period: int, clients: Sequence[str]) -> None:
        """Let clients choose jointly, and record what the server learns of it."""
        replay, progress = self.config.replay, self.progress

        def report(found: RoundResult) -> None:
            progress.bytes_up += found.bytes_up
            progress.bytes_down += found.bytes_down
            facts = {"answered": found.answered, "relaxed": found.relaxed, "integer": found.integer}
            sent = {"bytes_up": found.bytes_up, "bytes_down": found.bytes_down}
            refused = {"refused": [asdict(receipt) for receipt in found.refused]} if found.refused else {}
            progress.coordination.append({"period": period, "round": found.round} | sent | facts | refused)
            self._emit("coordination", coordination_round=found.round, **facts)

        length = contribution_length(self.config, self.task.model)
        rounds, method = replay.coordination_rounds, replay.strategy
        spec = CoordinationSpec(run_name(self.config), period, rounds, length, method, replay.options, replay.secure)
        budgets = {client: replay.budget_of(client, self._offered(client)) for client in clients}
        budgets = {c: n for c, n in budgets.items() if takes_part(self._samples(c), n, replay.minimum_pool)}
        arrays, observe = {MODEL: self._now.values}, self._observe(len(clients))
        keeping.coordinate(self.engine, spec, clients, budgets, arrays, self._most_kept, observe, report)

    def _offered(self, client: str) -> int:
        """Return how many samples a client has received up to this period."""
        return int(self._counts[self._numbers[client], : self.progress.period + 1].sum())

    def _most_kept(self, client: str) -> int:
        """Return how many samples a client can keep after this period."""
        offered, replay = self._offered(client), self.config.replay
        return offered if replay.strategy == ALL else min(offered, replay.budget_of(client, offered))

    def _figures(self) -> PeriodMatrix:
        rows = self.progress.metrics
        totals, weights = (by_period(rows, name) for name in ("total", "weight"))
        return PeriodMatrix.of_sums(totals, weights, self._metric, test_sets(rows))

    def _finish(self) -> Run:
        progress, matrix = self.progress, self._figures()
        name, missing = self._metric.name, missing_clients(progress.metrics)
        metrics = {name: or_none(matrix.all_period), f"{name}_mean_over_periods": or_none(matrix.period_mean)}
        metrics["forgetting"] = or_none(matrix.mean_forgetting())
        metrics["all_period_forgetting"] = or_none(matrix.all_period_forgetting())
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
        self._emit("end", **summary)
        return Run(self.folder.path, summary, matrix)

    def _save(self) -> None:
        with self._timed("checkpoints"):
            at = (self.progress.period, self.progress.round)
            self._now.buffers = self.engine.fingerprint(at)
            self.folder.save(self._now)
        self._saved, self._saved_at = time.monotonic(), at

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        seconds = self.progress.seconds
        seconds[phase] = seconds.get(phase, 0.0) + time.monotonic() - began

    def _observe(self, of: int) -> Observe:
        """Return what turns an engine's reports into events."""
        done = 0

        def observe(report: Answered | Problem) -> None:
            nonlocal done
            if isinstance(report, Problem):
                trace = {"trace": report.trace} if report.trace else {}
                self._emit("warning", text=report.text, **trace)
            else:
                done += report.clients
                self._emit("client", done=done, of=of, clients=report.clients, client=report.client)

        return observe

    def _emit(self, kind: str, **facts: Any) -> None:
        self._observer(Event(kind, self.progress.period, self.progress.round, facts))
