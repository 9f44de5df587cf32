"""The Flower engine: carries a run to clients that sit on Flower's nodes, simulated or real.

The server knows of each client its name, how many samples it has in each period, and how many it keeps; no more. It
sums in the order of the other engines, so that both give the same result.
"""

import math
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from coreplay.engines.flower.courier import BEGINNING, Answer, Courier
from coreplay.engines.flower.letters import Letter
from coreplay.engines.flower.rounds import Rounds, is_finite, is_whole
from coreplay.engines.sums import Weights, add_weighted, deal
from coreplay.federated.config import Config
from coreplay.federated.engine import EngineError, Evaluation, Update, Watch
from coreplay.federated.flat import Vector
from coreplay.federated.site import contribution_length, run_name
from coreplay.federated.strategy import ALL
from coreplay.files import read_json, reading, write_json, write_text
from coreplay.tasks import Task, WeightedSum

CLIENTS, NUMBER = "clients.json", "run.id"
LOOK = 0.5  # seconds between looks for clients at the beginning
GREETING = 30.0  # seconds that a look waits for nodes that have just come


@dataclass(frozen=True)
class Roll:
    """The clients that a run knows, with how much data each has."""

    train: dict[str, list[int]]
    test: dict[str, list[int]]

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients, sorted."""
        return tuple(sorted(self.train))

    @property
    def periods(self) -> int:
        """How many periods there are."""
        return len(next(iter(self.train.values()), []))

    def counts(self, split: str) -> NDArray[np.int64]:
        """Return how many samples each client has in each period: (clients, periods)."""
        table = self.train if split == "train" else self.test
        return np.array([table[client] for client in self.clients], dtype=np.int64)


class FlowerEngine(Rounds):
    """Runs over a Flower grid.

    Parameters
    ----------
    grid
        Flower's.
    config
        The configuration of the run.
    folder
        The folder of the run.
    task
        Of the run: what clients must share of it, such as the vocabulary, is sent to them once.
    period : int
        The last period whose buffers count: -1 for a new run.
    max_in_flight : int
        Most letters on their way at once.
    stop : Event, optional
        Set by another thread to end the run.
    """

    def __init__(
        self,
        grid: Grid,
        config: Config,
        folder: Path,
        task: Task,
        *,
        period: int = -1,
        max_in_flight: int = 64,
        stop: Event | None = None,
    ) -> None:
        place = folder / NUMBER
        if not place.exists():
            write_text(place, uuid.uuid4().hex)
        self._stop = stop or Event()
        courier = Courier(
            grid, self._hello, timeout=config.engine.timeout, max_in_flight=max_in_flight, stop=self._stop
        )
        number = place.read_text(encoding="utf-8").strip()
        length = contribution_length(config, task.model)
        super().__init__(courier, number, run_name(config), config.engine.quorum, length)
        if not courier.simulated:  # one that comes later is taken in later: the run does not wait for it
            self.greeting = min(config.engine.timeout, GREETING)
        self.config, self.folder = config, folder
        self._files, self._largest_weight = task.shared_artifacts(), task.largest_weight()
        self._weights = Weights(config.federated.max_weight_ratio)
        self._until, self._stamp = period, (max(period, 0), 0)
        self._begun = (folder / CLIENTS).exists()
        self.roll = Roll({}, {})
        self._chosen: dict[str, list[int]] = {}  # the periods after which each client chose
        if self._begun:
            with reading(folder / CLIENTS, "the clients of a run"):
                known = read_json(folder / CLIENTS)
                self.roll, self._chosen = Roll(known["train"], known["test"]), known["chosen"]
        self._said = {client: (self.roll.train[client], self.roll.test[client]) for client in self.roll.clients}

    def _hello(self) -> Letter:
        facts = {"config": self.config.model_dump(mode="json"), "files": self._files}
        return Letter("hello", self.number, max(self._until, 0), 0, facts | {"until": self._until})

    def wait(self, wanted: int, watch: Watch) -> None:
        """Wait until so many clients are there; `watch` is told of those who can't take part."""
        # when going on, as many as the rounds need
        wanted = max(wanted, math.ceil(self.quorum * len(self.roll.clients)))
        patience = max(self.config.engine.timeout, BEGINNING)
        until = time.monotonic() + patience
        while True:
            self.look(watch)
            if len(self.courier.nodes) >= wanted and (self._begun or self._agreed(watch)):
                break
            if time.monotonic() > until:
                raise EngineError(
                    f"{len(self.courier.nodes)} clients are there after {patience:g} s instead of "
                    f"{wanted} (engine.min_clients): are their SuperNodes running, and do they reach the SuperLink?"
                    if len(self.courier.nodes) < wanted
                    else f"the clients' data have different numbers of periods ({self._numbers()}), and no number is "
                    "that of most clients: say in the configuration how many there are (periods)"
                )
            if self._stop.wait(LOOK):
                raise EngineError("the run was stopped")
        self._begun = True
        self._remember()

    def _remember(self) -> None:
        known = {"train": self.roll.train, "test": self.roll.test, "chosen": self._chosen}
        write_json(self.folder / CLIENTS, known)

    def fingerprint(self) -> str:
        """Return nothing: each client says what it holds when it says hello."""
        return ""

    def _agreed(self, watch: Watch) -> bool:
        """Fill the roll with the clients whose data has as many periods as that of most; say whether there are most."""
        counts = Counter(len(train) for train, _ in self._said.values())
        periods, clients = counts.most_common(1)[0]
        if 2 * clients <= counts.total():
            return False
        for client, (train, test) in sorted(self._said.items()):
            if len(train) == periods:
                self.roll.train[client], self.roll.test[client] = train, test
            else:
                text = f"its data has {len(train)} periods, that of most clients has {periods}"
                watch({"text": f"client {client!r} can't take part: {text}"})
        return True

    def _numbers(self) -> str:
        return ", ".join(f"{client!r}: {len(train)}" for client, (train, _) in sorted(self._said.items()))

    def holdings(self) -> None:
        """Say nothing: what a client keeps stays on its disk."""

    def enter(self, answer: Answer) -> str:
        """Put a client's counts into the roll; return what is wrong with them."""
        assert answer.letter is not None, "an answer without a problem has a letter"
        facts, client = answer.letter.facts, answer.client
        train: Any = facts.get("train")
        test: Any = facts.get("test")
        if (
            not train
            or not (is_whole(train) and is_whole(test) and is_whole([facts.get("kept")]) and len(train) == len(test))
            or type(facts.get("held")) is not int
        ):
            return "its counts of samples are no whole numbers"
        periods = self.config.periods
        if periods is not None and len(train) < periods:
            return f"its data has {len(train)} periods, the configuration says {periods}"
        train, test = train[:periods], test[:periods]
        if self._begun and client not in self.roll.train:
            return "the run has begun without it"
        if self._begun and len(train) != self.roll.periods:
            return f"its data has {len(train)} periods, the run has {self.roll.periods}"
        self._said.setdefault(client, (train, test))
        most = self.most_kept(client, self._until)
        if facts["kept"] > most:
            return f"it says it keeps {facts['kept']} samples: at most {most} are possible"
        chosen = max((period for period in self._chosen.get(client, []) if period <= self._until), default=-1)
        if facts["held"] < chosen:
            return f"its buffer after period {chosen + 1} is gone: restore its state folder"
        self._sizes[client] = facts["kept"]
        return ""

    def most_kept(self, client: str, period: int) -> int:
        """Return how many samples a client can keep after a period: by what it was offered, and by its budget."""
        offered, replay = sum(self._said[client][0][: period + 1]), self.config.replay
        return offered if replay.strategy == ALL else min(offered, replay.budget_of(client, offered))

    def _kept(self, period: int, letters: Mapping[str, Letter], watch: Watch) -> set[str]:
        kept = super()._kept(period, letters, watch)
        for client in kept:
            before = [earlier for earlier in self._chosen.get(client, []) if earlier < period]
            self._chosen[client] = [*before, period]
        self._remember()
        return kept

    def rewind(self, period: int) -> None:
        """Nothing is left to do: every client was told when it said hello."""
        assert period == self._until, "the engine was made for this period"

    def train(self, period: int, round: int, clients: Sequence[str], values: Vector, watch: Watch) -> Update:
        """Let clients train; sum in the order of the groups."""
        self._stamp = (period, round)
        self._until = period - 1
        self.look(watch)
        counts = {client: self.roll.train[client][period] + self._sizes.get(client, 0) for client in clients}
        groups, largest = deal(counts, self.config.engine.aggregation_groups), self._weights.largest(counts)
        for text in self._weights.warnings(counts):
            watch({"text": text})
        group_of = {client: k for k, group in enumerate(groups) for client in group}
        letter = Letter("train", self.number, period, round, model=values)
        change, total = np.zeros_like(values), torch.zeros_like(torch.from_numpy(values))
        latest, samples, loss = -1, 0, WeightedSum()
        missing: dict[str, str] = {}
        for client, answer in self._carry(dict.fromkeys(group_of, letter), watch, missing, values.nbytes):
            problem = _check_trained(answer, values, counts[client])
            if problem:
                self._refuse(client, problem, watch, missing)
                continue
            if group_of[client] != latest and latest >= 0:
                change += total.numpy()
            weight = min(answer.facts["samples"], largest)
            add_weighted(total, _tensor(answer.vector), weight, first=group_of[client] != latest)
            latest = group_of[client]
            samples += weight
            loss += WeightedSum(answer.facts["total"], answer.facts["weight"])
            del answer  # a whole model: not to be kept while the next one is waited for
        if latest >= 0:
            change += total.numpy()
        self.check_quorum(len(group_of), missing, f"training, period {period}, round {round}")
        return Update(change, samples, loss, missing)

    def evaluate(self, values: Vector, watch: Watch) -> Evaluation:
        """Let every client measure the model on its own test samples."""
        self.look(watch)
        asked = [client for client in self.roll.clients if any(self.roll.test[client])]
        letter = Letter("evaluate", self.number, *self._stamp, model=values)
        sums = [WeightedSum()] * self.roll.periods
        missing: dict[str, str] = {}
        for client, answer in self._carry(dict.fromkeys(asked, letter), watch, missing):
            problem = _check_evaluated(answer, self.roll.test[client], self._largest_weight)
            if problem:
                self._refuse(client, problem, watch, missing)
                continue
            told = zip(answer.facts["totals"], answer.facts["weights"], strict=True)
            sums = [one + WeightedSum(total, weight) for one, (total, weight) in zip(sums, told, strict=True)]
        self.check_quorum(len(asked), missing, "evaluation")
        return Evaluation(sums, missing)

    def choose(self, period: int, clients: Sequence[str], values: Vector, watch: Watch) -> None:
        """Let each client choose alone; it keeps its new buffer itself."""
        letter = Letter("choose", self.number, period, 0, model=values)
        self._kept(period, dict.fromkeys(clients, letter), watch)


def _tensor(values: Vector) -> Tensor:
    """Return a tensor on the same memory; torch warns if it must not be written, which nobody does here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values)


def _check_evaluated(answer: Letter, counts: list[int], largest_weight: float) -> str:
    """Return what is wrong with a client's sums over its test sets; empty if nothing is."""
    totals: Any = answer.facts.get("totals")
    weights: Any = answer.facts.get("weights")
    if not (is_finite(totals, len(counts)) and is_finite(weights, len(counts))):
        return f"must send {len(counts)} sums of scores and of weights, all finite"
    for period, (total, weight, count) in enumerate(zip(totals, weights, counts, strict=True)):
        if not 0 <= weight <= (count * largest_weight if count else 0) or (total and not weight):
            return f"sent weight {weight:g} for the {count} test samples of period {period}"
    return ""


def _check_trained(answer: Letter, values: Vector, most: int) -> str:
    """Return what is wrong with a trained model; empty if nothing is."""
    change, facts = answer.model, answer.facts
    if not isinstance(change, np.ndarray) or change.shape != values.shape or change.dtype != values.dtype:
        return f"sent a change of another shape than the model's {values.shape}"
    if not np.isfinite(np.dot(change, change)):
        return "sent a change with NaN or infinity"
    if not is_whole([facts.get("samples")]) or not 1 <= facts["samples"] <= most:
        return f"did not say how many samples it has: from 1 to {most}"
    if not is_finite([facts.get("total"), facts.get("weight")], 2):
        return "sent a loss that is no finite number"
    return ""
