"""The client's side of a run over Flower: what it must remember lies on its own disk.

In a deployment every message finds a new process, so nothing is kept in memory but what is made quickly again. Every
answer is the same if its letter comes twice: training and choosing are repeatable to the bit, coordination and secure
sums go on from states that are on the disk.

    STATE/tasks/        what clients share of a task, such as its vocabulary, by the hash of its content
    STATE/CLIENT.lock   held by the process that works on the client's files
    STATE/CLIENT.mark   tells the server whether these are the files it knows
    STATE/CLIENT/RUN/   config.json      what the server said at the beginning
                        buffers.sqlite   what the client keeps
                        PERIOD/          model, gradients and dialogue of a period's choice
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from coreplay.coordination.secure.client import STEPS
from coreplay.data import FederatedStream, load
from coreplay.engines.flower.claim import mark
from coreplay.engines.flower.dialogue import Dialogue, Half, forget_before
from coreplay.engines.flower.letters import Letter
from coreplay.engines.flower.node import Node, RefusedError
from coreplay.federated.config import Config
from coreplay.federated.flat import FlatModel, Vector
from coreplay.federated.pools import ClientPool, kept_buffer
from coreplay.federated.sampling import sample_clients
from coreplay.federated.site import Site
from coreplay.files import make_folder, read_json, replacing, write_json, write_text
from coreplay.replay import Buffer, Store, path_for
from coreplay.tasks import Task, make

_NUMBER = re.compile("[0-9a-f]{32}")
_OPTION = re.compile("[a-z_]{1,40}")


@dataclass(frozen=True)
class Things:
    """What all clients of one process share: made once, since it takes long."""

    config: Config
    stream: FederatedStream
    task: Task
    flat: FlatModel


@lru_cache(maxsize=1)
def _things(config: str, files: tuple[tuple[str, str], ...], data: str | None) -> Things:
    given = json.loads(config)
    if data is not None:  # this node's own data instead of the server's
        given["stream"]["options"]["path"] = data
        given["stream"]["num_clients"] = None
    given["task"]["options"] |= dict(files)
    made = Config.make(given)
    stream = sample_clients(load(made.stream.source, **made.stream.options), made.stream)
    task = make(made.task.name, stream, **made.task.options)
    return Things(made, stream, task, FlatModel(task.model(0)))


class Device:
    """Answers letters of one run for one client."""

    def __init__(self, node: Node, run: str) -> None:
        if not _NUMBER.fullmatch(run):
            raise RefusedError("the run's number is not one")
        self._node, self._run = node, run
        self._folder = path_for(node.state, node.whose).with_suffix("") / run

    def answer(self, letter: Letter) -> Letter:
        """Do what a letter asks."""
        handlers: dict[str, Callable[[Letter], Letter]] = {
            "hello": self._hello,
            "train": self._train,
            "evaluate": self._evaluate,
            "choose": self._choose,
            "contribute": self._contribute,
            "settle": self._settle,
        }
        handlers |= dict.fromkeys(STEPS, self._step)
        if letter.act not in handlers:
            raise RefusedError(f"nobody here knows what {letter.act[:40]!r} means: is the server of another version?")
        return handlers[letter.act](letter)

    def _hello(self, letter: Letter) -> Letter:
        """Learn of the run; go back to the buffers that count; say who this is and how much data it has."""
        files = {}
        for option, text in letter.facts["files"].items():
            if not _OPTION.fullmatch(option):
                raise RefusedError("a file of the task has no name of an option")
            files[option] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            if not self._shared(files[option]).exists():
                write_text(self._shared(files[option]), text)
        make_folder(self._folder, private=True)
        write_json(self._folder / "config.json", {"config": letter.facts["config"], "files": files})
        things = self._things
        with Store.open(self._folder / "buffers.sqlite") as store:
            store.rewind(letter.facts["until"])
            buffer = store.load(self._client)
        train, test = (things.stream.counts(split)[self._number].tolist() for split in ("train", "test"))
        held = {"kept": len(buffer.items), "held": buffer.period}
        facts = {"train": train, "test": test, "mark": mark(self._node)} | held
        return letter.reply(self._client, facts)

    @property
    def _things(self) -> Things:
        place = self._folder / "config.json"
        if not place.exists():
            raise RefusedError("this client has not heard of the run: its state was lost, or the hello never came")
        known = read_json(place)
        files = tuple((option, str(self._shared(digest))) for option, digest in known["files"].items())
        return _things(json.dumps(known["config"]), files, self._node.data)

    def _shared(self, digest: str) -> Path:
        """Return the place of a file of the task: one for all clients here, who then share what is made of it."""
        return self._node.state / "tasks" / f"{digest}.json"

    @property
    def _client(self) -> str:
        clients = self._things.stream.clients
        if self._node.client is not None:
            if self._node.client not in clients:
                raise RefusedError(f"client-id {self._node.client[:40]!r} is not in this node's data")
            return self._node.client
        assert self._node.partition is not None, "checked when the node config was read"
        if self._node.partition >= len(clients):
            raise RefusedError(f"partition-id {self._node.partition}: the stream has {len(clients)} clients")
        return clients[self._node.partition]

    @property
    def _number(self) -> int:
        return self._things.stream.clients.index(self._client)

    def _site(self, store: Store, period: int) -> Site:
        things = self._things
        return Site(things.config, things.stream, things.task, things.flat, store, self._folder / str(period))

    def _train(self, letter: Letter) -> Letter:
        values = letter.vector
        with Store.open(self._folder / "buffers.sqlite") as store:
            site = self._site(store, letter.period)
            trained = site.train(self._client, letter.period, letter.round, values)
        change = site.flat.numpy()  # in place of the model, which is loaded anew for every letter
        change -= values
        facts = {"samples": trained.samples, "total": trained.loss.total, "weight": trained.loss.weight}
        return letter.reply(self._client, facts, change)

    def _evaluate(self, letter: Letter) -> Letter:
        values, stream = letter.vector, self._things.stream
        periods = self._things.config.periods or stream.periods
        with Store.open(self._folder / "buffers.sqlite") as store:
            site = self._site(store, letter.period)
            tallies = [site.tally(stream.samples(self._client, t, "test"), values) for t in range(periods)]
        facts = {"totals": [tally.total for tally in tallies], "weights": [tally.weight for tally in tallies]}
        return letter.reply(self._client, facts)

    def _choose(self, letter: Letter) -> Letter:
        values = self._remembered(letter)
        with Store.open(self._folder / "buffers.sqlite") as store:
            buffer = self._site(store, letter.period).choose_alone(self._client, letter.period, values)
            return self._keep(letter, store, buffer)

    def _contribute(self, letter: Letter) -> Letter:
        values = self._remembered(letter)
        with Store.open(self._folder / "buffers.sqlite") as store:
            return self._dialogue(letter).contribute(letter, self._half(letter, store, values)[0])

    def _step(self, letter: Letter) -> Letter:
        return self._dialogue(letter).step(letter)

    def _settle(self, letter: Letter) -> Letter:
        values = self._remembered(letter)
        with Store.open(self._folder / "buffers.sqlite") as store:
            make, pool = self._half(letter, store, values)
            kept = self._dialogue(letter).settle(letter, make)
            return self._keep(letter, store, kept_buffer(pool, kept, self._client, letter.period))

    def _half(self, letter: Letter, store: Store, values: Vector) -> tuple[Half, ClientPool]:
        site, client, period = self._site(store, letter.period), self._client, letter.period
        pool = site.pool(client, period)
        return partial(site.half, client, period, pool, values), pool

    def _dialogue(self, letter: Letter) -> Dialogue:
        return Dialogue(self._folder / str(letter.period))

    def _keep(self, letter: Letter, store: Store, buffer: Buffer) -> Letter:
        store.replace(buffer)
        forget_before(self._folder, letter.period)
        return letter.reply(self._client, {"kept": len(buffer.items)})

    def _remembered(self, letter: Letter) -> Vector:
        """Return the period's model: that of the letter, else the one that came before."""
        folder = self._folder / str(letter.period)
        place, known = folder / "model.safetensors", folder / "model.sha256"
        if letter.model is not None:
            values = np.ascontiguousarray(letter.vector)
            digest = hashlib.sha256(values.data).hexdigest()
            if not known.exists() or known.read_text(encoding="utf-8") != digest:
                shutil.rmtree(folder, ignore_errors=True)  # gradients of another model, from before a resume
                with replacing(place, private=True) as temporary:
                    save_file({"values": values}, temporary)
                write_text(known, digest)
            return values
        try:
            return load_file(place)["values"]
        except (OSError, SafetensorError, KeyError):
            raise RefusedError(f"this client does not have the model of period {letter.period} any more") from None
