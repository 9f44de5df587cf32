"""Coordinated replay for a Flower app of your own: a replay buffer at the client.

`ReplayBuffer(context)` joins what is kept to new data, and answers the server's requests in one handler of
`@app.query("coreplay")`. The server's half is in `selection`. Data and single gradients stay at the client.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from coreplay.codec import decode, encode
from coreplay.coordination import ArrayGradients, Client, Session
from coreplay.errors import RefusedError
from coreplay.files import atomic_write
from coreplay.flower.client import clear_before
from coreplay.flower.messages import failure, from_record, read_request, to_record
from coreplay.flower.node import Node
from coreplay.gradients import gradient_matrix
from coreplay.replay import Buffer, Item, Store
from coreplay.runtime.requests import Contribute, ContributeReply, KeptReply, Reply, Request, SecureStep, Settle

Data = Mapping[str, Tensor]  # by name, with the sample in dimension 0
PerSampleLoss = Callable[[nn.Module, Any], Tensor]
DIGEST = "data.sha256"  # in a period's folder: which data its buffer was chosen from


class Offer(Request, kind="offer"):
    """Say what you have for the choice after a period; first delete everything that you hold if it starts over."""

    fresh: bool = False
    only_held: bool = False  # just the period that the client chose after


class Offered(Reply, kind="offered"):
    """The client's budget, the sizes of its pool, buffer and sketch, and the last period that it chose after."""

    budget: int = 0
    pool: int = 0
    kept: int = 0
    sketch_size: int = 0
    held: int = -1
    same_data: bool = True
    state_id: str = ""


class ReplayBuffer:
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
    method : str
        Coordination method, as in `choose_jointly`. It may read the columns of the data, and `arrived`: the periods.
    """

    def __init__(
        self,
        context: Context,
        budget: int = 20,
        *,
        sketch_size: int = 4096,
        seed: int = 0,
        method: str = "corrective",
    ) -> None:
        self._node = Node.read(dict(context.node_config))
        self.client, self._folder = self._node.owner, self._node.folder
        self.budget, self.sketch_size, self.seed, self.method = budget, sketch_size, seed, method

    def join(self, data: Data, period: int) -> dict[str, Tensor]:
        """Return the new samples of a period and those kept from earlier ones."""
        with self._store() as store:
            kept = store.load(self.client, at=period - 1)
        rows = [decode(item.payload) for item in kept.items]
        return {
            name: torch.cat([values, *(torch.tensor(row[name], dtype=values.dtype).unsqueeze(0) for row in rows)])
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
        """Answer one of the server's requests.

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
        request = read_request(message.content)
        try:
            reply = self._answer(request, model, per_sample_loss, data).answering(request, self.client)
        except Exception as error:  # the reply has neither a traceback nor any data in it
            reply = failure(error, request)
        return Message(to_record(reply), reply_to=message)

    def _answer(
        self, request: Request, model: nn.Module, per_sample_loss: PerSampleLoss, given: Data | Callable[[int], Data]
    ) -> Reply:
        if isinstance(request, Offer) and request.only_held:
            with self._store() as store:
                return Offered(held=store.load(self.client).period, state_id=self._node.state_id)
        if not isinstance(request, Offer | Contribute | SecureStep | Settle):
            raise RefusedError(f"unsupported request {request.kind!r}: server and client versions may differ")
        data = given(request.period) if callable(given) else given
        if isinstance(request, Offer):
            return self._offer(request, data)
        with self._store() as store:
            session = Session(lambda: self._client(request, model, per_sample_loss, data), store.session(self.client))
            broadcast, reply = request.data or None, ContributeReply()
            if isinstance(request, Contribute):
                found = session.contribute(request.session, broadcast, secure=request.secure, attempt=request.attempt)
                reply = ContributeReply(data=found.data, basis=found.basis, dimension=found.dimension)
            elif isinstance(request, SecureStep):
                reply = ContributeReply(data=session.step(request.session, request.step, request.round, request.data))
            else:
                kept = session.finish(request.session, broadcast)
            store.save_session(self.client, session.state())  # better no answer than two different ones
        return self._keep(request, data, kept) if isinstance(request, Settle) else reply

    def _client(self, request: Request, model: nn.Module, per_sample_loss: PerSampleLoss, data: Data) -> Client:
        """Return this client's half of the coordination, with gradients at the model that a request brought."""
        place = self._folder / str(request.period) / "gradients.safetensors"
        if request.arrays:
            digest = hashlib.sha256(b"".join(array.tobytes() for array in request.arrays.values())).digest()
            if not place.exists() or load_file(place)["model"].tobytes() != digest:
                model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in request.arrays.items()})
                pool, size = self.join(data, request.period), self.sketch_size
                matrix: Any = gradient_matrix(model, per_sample_loss, pool, "sketch", size=size, seed=self.seed)
                rows = np.ascontiguousarray(matrix.rows())
                with atomic_write(place, private=True) as temporary:
                    save_file({"rows": rows, "model": np.frombuffer(digest, np.uint8)}, temporary)
        if not place.exists():
            raise RefusedError(f"this client does not have the gradients of period {request.period} any more")
        return Client(
            self.client,
            ArrayGradients(load_file(place)["rows"], unit=True),
            self.budget,
            run=request.run,
            period=request.period,
            seed=self.seed,
            method=self.method,
            columns={name: partial(self._column, name, data, request.period) for name in ("arrived", *data)},
        )

    def _column(self, name: str, data: Data, period: int) -> Any:
        """Return a column of the pool for a coordination method that reads it."""
        if name in data:
            return self.join(data, period)[name].numpy()
        with self._store() as store:
            kept = store.load(self.client, at=period - 1)
        return np.array([period] * _length(data) + [item.period for item in kept.items])

    def _offer(self, request: Offer, data: Data) -> Offered:
        """Say what the client has, holds and may keep; its buffers are deleted only if the server asks for that."""
        with self._store() as store:
            if request.fresh:
                store.rewind(-1)
                clear_before(self._folder, 2**31)
            held = store.load(self.client).period
            kept = 0 if held > request.period else len(store.load(self.client, at=request.period - 1).items)
        place = self._folder / str(request.period) / DIGEST
        same = held != request.period or not place.exists() or place.read_bytes() == _digest(data)
        return Offered(
            budget=self.budget,
            pool=_length(data) + kept,
            kept=kept,
            sketch_size=self.sketch_size,
            held=held,
            same_data=same,
            state_id=self._node.state_id,
        )

    def _keep(self, request: Settle, data: Data, indices: Any) -> KeptReply:
        new = _length(data)
        with self._store() as store:
            before = store.load(self.client, at=request.period - 1)
            items = [
                Item(f"{request.period}-{k}", request.period, _payload(data, k)) if k < new else before.items[k - new]
                for k in indices.tolist()
            ]
            with atomic_write(self._folder / str(request.period) / DIGEST, private=True) as temporary:
                temporary.write_bytes(_digest(data))
            store.replace(Buffer(self.client, request.period, before.seen + new, tuple(items)))
        clear_before(self._folder, request.period)
        return KeptReply(kept=len(items), held=request.period)

    def _store(self) -> Store:
        return Store.open(self._folder / "buffers.sqlite")


def period_of(message: Message) -> int:
    """Return the period that one of the server's requests is about."""
    return from_record(message.content).period


def _length(data: Data) -> int:
    return len(next(iter(data.values())))


def _digest(data: Data) -> bytes:
    """Return what tells one period's data from another's, in whatever order the samples come."""
    rows = [_payload(data, k) for k in range(_length(data))]
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(row).digest() for row in rows))).digest()


def _payload(data: Data, row: int) -> bytes:
    return encode({name: values[row].numpy() for name, values in data.items()})
