"""Coordinated replay for a Flower app of your own: a memory at the client, and a phase of choosing at the server.

At the client, `Memory(context)` joins what is kept to new data, and answers the server's questions in one handler of
`@app.query("coreplay")`. At the server, `choose_jointly(grid, arrays, period=…)` is called after a period's rounds.
Data and single gradients stay at the client.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from coreplay.coordination import Client
from coreplay.coordination.matrix import Rows
from coreplay.engines.flower.claim import mark
from coreplay.engines.flower.courier import Answer, Courier
from coreplay.engines.flower.dialogue import STEPS, Dialogue, forget_before
from coreplay.engines.flower.letters import Letter
from coreplay.engines.flower.node import Node, RefusedError
from coreplay.engines.flower.rounds import Rounds, is_whole
from coreplay.federated.joint import Terms, Told, negotiate
from coreplay.files import replacing
from coreplay.gradients import gradient_matrix
from coreplay.replay import Buffer, Item, Store, decode, encode, path_for

Data = Mapping[str, Tensor]  # by name, with the sample in dimension 0
PerSampleLoss = Callable[[nn.Module, Any], Tensor]


class Memory:
    """What one client keeps, in a SQLite file on its own disk.

    Parameters
    ----------
    context
        Flower's. Its node config says where (`state`, or the environment's COREPLAY_STATE) and who (`client-id`, or
        `partition-id` in a simulation).
    budget : int
        How many samples the client may keep.
    size : int
        Numbers a gradient is sketched to; the same for all clients.
    """

    def __init__(self, context: Context, budget: int = 20, *, size: int = 4096, seed: int = 0) -> None:
        node = Node.read(dict(context.node_config))
        self.client, self._node = node.whose, node
        self.budget, self.size, self.seed = budget, size, seed
        self._folder = path_for(node.state, self.client).with_suffix("")

    def join(self, data: Data, period: int) -> dict[str, Tensor]:
        """Return the new samples of a period and those kept from earlier ones."""
        with self._store() as store:
            kept = store.load(self.client, at=period - 1)
        rows = [decode(item.payload) for item in kept.items]
        return {
            name: torch.cat([values, *(torch.from_numpy(row[name]).to(values.dtype).unsqueeze(0) for row in rows)])
            for name, values in data.items()
        }

    def kept(self) -> int:
        """Return how many samples are kept now."""
        with self._store() as store:
            return len(store.load(self.client).items)

    def answer(self, message: Message, model: nn.Module, per_sample_loss: PerSampleLoss, data: Data) -> Message:
        """Answer one of the server's questions.

        Parameters
        ----------
        message
            As it came.
        model
            An instance of the app's model; the server's arrays are loaded into it when they come along.
        per_sample_loss : function
            (model, data) to one loss a sample.
        data
            The new samples of the period, of which `period_of(message)` tells the number.
        """
        letter = Letter.from_record(message.content)
        try:
            reply = self._answer(letter, model, per_sample_loss, data)
        except Exception as error:  # told in the answer, without a traceback or any data
            logging.getLogger(__name__).exception("letter %r failed", letter.act)
            told = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}; its log says more"
            reply = letter.reply("", {"error": told})
        return Message(reply.to_record(), reply_to=message)

    def _answer(self, letter: Letter, model: nn.Module, per_sample_loss: PerSampleLoss, data: Data) -> Letter:
        if letter.act == "hello":
            with self._store() as store:
                store.rewind(letter.period - 1)  # what an earlier run of the app kept later is not of this one
                kept = len(store.load(self.client).items)
            facts = {"budget": self.budget, "pool": _length(data) + kept, "kept": kept, "mark": mark(self._node)}
            return letter.reply(self.client, facts)
        folder = self._folder / str(letter.period)
        if letter.act in STEPS:
            return Dialogue(folder).step(letter)
        pool = self.join(data, letter.period)
        place = folder / "gradients.safetensors"
        if letter.model is not None:
            assert isinstance(letter.model, ArrayRecord), "the server sends its arrays"
            state = letter.model.to_torch_state_dict()
            digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in state.values())).digest()
            if not place.exists() or load_file(place)["mark"].tobytes() != digest:
                model.load_state_dict(state)
                matrix: Any = gradient_matrix(model, per_sample_loss, pool, "sketch", size=self.size, seed=self.seed)
                rows = np.ascontiguousarray(matrix.rows())
                with replacing(place, private=True) as temporary:
                    save_file({"rows": rows, "mark": np.frombuffer(digest, np.uint8)}, temporary)
        if not place.exists():
            raise RefusedError(f"this client does not have the gradients of period {letter.period} any more")
        gradients = Rows.of_unit(load_file(place)["rows"])

        def half(before: bytes | None) -> Client:
            about: dict[str, Any] = {"run": letter.run, "period": letter.period, "seed": self.seed}
            client = Client(self.client, gradients, self.budget, **about)
            if before is not None:
                client.restore(before)
            return client

        if letter.act == "contribute":
            return Dialogue(folder).contribute(letter, half)
        return self._keep(letter, pool, _length(data), Dialogue(folder).settle(letter, half))

    def _keep(self, letter: Letter, pool: Data, new: int, indices: Any) -> Letter:
        with self._store() as store:
            before = store.load(self.client, at=letter.period - 1)
            periods = [letter.period] * new + [item.period for item in before.items]
            items = []
            for k in indices.tolist():
                payload = encode({name: values[k].numpy() for name, values in pool.items()})
                items.append(Item(hashlib.sha256(payload).hexdigest()[:32], periods[k], payload))
            store.replace(Buffer(self.client, letter.period, before.seen + new, tuple(items)))
        forget_before(self._folder, letter.period)
        return letter.reply(self.client, {"kept": len(items)})

    def _store(self) -> Store:
        return Store.open(self._folder / "buffers.sqlite")


def period_of(message: Message) -> int:
    """Return the period that one of the server's questions is about."""
    return Letter.from_record(message.content).period


@dataclass(frozen=True)
class Choice:
    """How a phase of choosing went: rounds, what clients keep now, and who was missing and why."""

    rounds: list[Told] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def choose_jointly(
    grid: Grid,
    arrays: ArrayRecord,
    *,
    period: int,
    rounds: int = 4,
    secure: bool = False,
    run: str = "app",
    quorum: float = 0.5,
    timeout: float = 600.0,
    window: int = 4,
    stop: Event | None = None,
) -> Choice:
    """Let all clients choose jointly what they keep of a period.

    Parameters
    ----------
    grid
        Flower's.
    arrays
        The model after the period's rounds, as it goes to clients for training.
    period : int
        Counts from 0.
    rounds : int
        Of the coordination.
    secure : bool
        Learn only the sums of the clients' contributions.
    run : str
        A name for the run.
    quorum, timeout, window
        Share of the clients that must answer, seconds to wait for each, letters on their way at once.
    """
    phase = _Phase(grid, run, period, quorum=quorum, timeout=timeout, window=window, stop=stop)
    choice = Choice()

    def watch(facts: Any) -> None:
        if "text" in facts:
            choice.problems.append(facts["text"])
            logging.getLogger("flwr").warning(facts["text"])

    failed = phase.look(watch)
    phase.check_quorum(len(phase.pools) + len(failed), failed, f"hello, period {period}")
    clients: Sequence[str] = sorted(client for client, size in phase.pools.items() if size)
    budgets = {c: phase.budgets[c] for c in clients if phase.pools[c] > max(phase.budgets[c], 1)}
    terms = Terms(run, period, rounds, secure=secure)
    broadcast = negotiate(phase, terms, budgets, arrays, watch, choice.rounds.append)
    phase.settle(period, clients, arrays, broadcast, watch)
    choice.kept.update(phase.sizes())
    return choice


class _Phase(Rounds):
    """The clients of one phase, with their budgets and the sizes of their pools."""

    def __init__(
        self, grid: Grid, run: str, period: int, *, quorum: float, timeout: float, window: int, stop: Event | None
    ) -> None:
        courier = Courier(grid, lambda: Letter("hello", run, period, 0), timeout=timeout, window=window, stop=stop)
        super().__init__(courier, run, run, quorum)
        self.budgets: dict[str, int] = {}
        self.pools: dict[str, int] = {}

    def enter(self, answer: Answer) -> str:
        assert answer.letter is not None, "an answer without a problem has a letter"
        facts = answer.letter.facts
        found: list[Any] = [facts.get(name) for name in ("budget", "pool", "kept")]
        if not is_whole(found) or not found[0]:
            return "it did not say how much it has and may keep"
        self.budgets[answer.client], self.pools[answer.client], self._sizes[answer.client] = found
        return ""


def _length(data: Data) -> int:
    return len(next(iter(data.values())))
