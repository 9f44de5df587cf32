"""Coordinated replay for a Flower app of your own: a memory at the client.

`Memory(context)` joins what is kept to new data, and answers the server's questions in one handler of
`@app.query("coreplay")`. The server's half is in `choosing`. Data and single gradients stay at the client.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from coreplay.coordination import Client
from coreplay.coordination.matrix import Rows
from coreplay.coordination.secure.client import STEPS
from coreplay.engines.flower.claim import mark
from coreplay.engines.flower.dialogue import Dialogue, forget_before
from coreplay.engines.flower.letters import Letter
from coreplay.engines.flower.node import Node, RefusedError
from coreplay.files import replacing
from coreplay.gradients import gradient_matrix
from coreplay.replay import Buffer, Item, Store, decode, encode, path_for

Data = Mapping[str, Tensor]  # by name, with the sample in dimension 0
PerSampleLoss = Callable[[nn.Module, Any], Tensor]
DIGEST = "data.sha256"  # in a period's folder: which data its buffer was chosen from


class Memory:
    """What one client keeps, in a SQLite file on its own disk: `STATE/CLIENT/buffers.sqlite`.

    Parameters
    ----------
    context
        Flower's. Its node config says where (`state`, or the environment's COREPLAY_STATE) and who (`client-id`, or
        `partition-id` in a simulation).
    budget : int
        How many samples the client may keep.
    sketch_size : int
        Length of the sketch of a gradient; the same for all clients.
    seed : int
        Seed of the sketch and of the client's random choices; the same for all clients.
    """

    def __init__(self, context: Context, budget: int = 20, *, sketch_size: int = 4096, seed: int = 0) -> None:
        node = Node.read(dict(context.node_config))
        self.client, self._node = node.whose, node
        self.budget, self.sketch_size, self.seed = budget, sketch_size, seed
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

    def answer(
        self,
        message: Message,
        model: nn.Module,
        per_sample_loss: PerSampleLoss,
        data: Data | Callable[[int], Data],
    ) -> Message:
        """Answer one of the server's questions.

        Parameters
        ----------
        message
            The message, as the handler got it.
        model
            An instance of the app's model; the server's arrays are loaded into it when they come along.
        per_sample_loss : function
            (model, data) to one loss per sample.
        data
            A function that returns the new samples of a period, given its number; or these samples themselves, of the
            period that `period_of(message)` tells. `next_period` asks before the period is known, so an app that calls
            it needs the function.
        """
        letter = Letter.from_record(message.content)
        try:
            reply = self._answer(letter, model, per_sample_loss, data)
        except Exception as error:  # told in the answer, without a traceback or any data
            logging.getLogger(__name__).exception("letter %r failed", letter.act)
            told = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}; its log says more"
            reply = letter.reply("", {"error": told})
        return Message(reply.to_record(), reply_to=message)

    def _answer(
        self, letter: Letter, model: nn.Module, per_sample_loss: PerSampleLoss, given: Data | Callable[[int], Data]
    ) -> Letter:
        folder = self._folder / str(letter.period)
        if letter.act == "next":
            with self._store() as store:
                return letter.reply(self.client, {"held": store.load(self.client).period, "mark": mark(self._node)})
        if letter.act in STEPS:
            return Dialogue(folder).step(letter)
        data = given(letter.period) if callable(given) else given
        if letter.act == "hello":
            return self._hello(letter, data)
        pool = self.join(data, letter.period)
        place = folder / "gradients.safetensors"
        if letter.model is not None:
            assert isinstance(letter.model, ArrayRecord), "the server sends its arrays"
            state = letter.model.to_torch_state_dict()
            digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in state.values())).digest()
            if not place.exists() or load_file(place)["mark"].tobytes() != digest:
                model.load_state_dict(state)
                matrix: Any = gradient_matrix(
                    model, per_sample_loss, pool, "sketch", size=self.sketch_size, seed=self.seed
                )
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
        return self._keep(letter, pool, data, Dialogue(folder).settle(letter, half))

    def _hello(self, letter: Letter, data: Data) -> Letter:
        """Say what the client has, holds and may keep; its buffers are deleted only if the server asks for that."""
        with self._store() as store:
            if letter.facts.get("fresh") is True:
                store.rewind(-1)
                forget_before(self._folder, 2**31)
            held = store.load(self.client).period
            kept = 0 if held > letter.period else len(store.load(self.client, at=letter.period - 1).items)
        place = self._folder / str(letter.period) / DIGEST
        same = held != letter.period or not place.exists() or place.read_bytes() == _digest(data)
        facts = {"budget": self.budget, "pool": _length(data) + kept, "kept": kept, "size": self.sketch_size}
        return letter.reply(self.client, facts | {"held": held, "same": same, "mark": mark(self._node)})

    def _keep(self, letter: Letter, pool: Data, data: Data, indices: Any) -> Letter:
        new = _length(data)
        with self._store() as store:
            before = store.load(self.client, at=letter.period - 1)
            taken, items = {item.key for item in before.items}, []
            for k in indices.tolist():
                if k < new:
                    items.append(_item(letter.period, _payload(pool, k), taken))
                else:
                    items.append(before.items[k - new])
            with replacing(self._folder / str(letter.period) / DIGEST, private=True) as temporary:
                temporary.write_bytes(_digest(data))
            store.replace(Buffer(self.client, letter.period, before.seen + new, tuple(items)))
        forget_before(self._folder, letter.period)
        return letter.reply(self.client, {"kept": len(items)})

    def _store(self) -> Store:
        return Store.open(self._folder / "buffers.sqlite")


def period_of(message: Message) -> int:
    """Return the period that one of the server's questions is about."""
    return Letter.from_record(message.content).period


def _item(period: int, payload: bytes, taken: set[str]) -> Item:
    """Return a new item under a key that no other sample has; equal samples are told apart by a number."""
    digest = hashlib.sha256(payload).hexdigest()[:32]
    key, repeat = digest, 0
    while key in taken:
        repeat += 1
        key = f"{digest}-{repeat}"
    taken.add(key)
    return Item(key, period, payload)


def _length(data: Data) -> int:
    return len(next(iter(data.values())))


def _digest(data: Data) -> bytes:
    """Return what tells one period's data from another's, in whatever order the samples come."""
    rows = [_payload(data, k) for k in range(_length(data))]
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(row).digest() for row in rows))).digest()


def _payload(data: Data, row: int) -> bytes:
    return encode({name: values[row].numpy() for name, values in data.items()})
