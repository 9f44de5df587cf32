"""A client on a Flower node: it joins runs, and hands their requests to the client runtime.

In a deployment every message finds a new process, so nothing is kept in memory but what is made quickly again.

    STATE/tasks/        what clients share of a task, such as its vocabulary, by the hash of its content
    STATE/CLIENT.lock   held by the process that works on the client's files
    STATE/CLIENT.id     tells the server whether these are the files it knows
    STATE/CLIENT/RUN/   config.json      what the server sent when the client joined
                        plugins/         the plugins of the run
                        buffers.sqlite   what the client keeps: buffers, states of hooks, answers in a coordination
                        PERIOD/          the model and the gradients of a period's choice
"""

import hashlib
import json
import math
import os
import re
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from threadpoolctl import threadpool_limits

from coreplay.data import FederatedStream, load
from coreplay.errors import InputError, RefusedError
from coreplay.files import atomic_write, make_folder, read_json, write_json, write_text
from coreplay.flower.messages import failure
from coreplay.flower.node import Node
from coreplay.learning import FlatModel
from coreplay.plugins import load_sources
from coreplay.replay import Store
from coreplay.runtime.api import sample_clients
from coreplay.runtime.client import ClientRuntime
from coreplay.runtime.config import Config
from coreplay.runtime.requests import MODEL, Contribute, Join, Joined, Reply, Request, SecureStep, Select, Settle
from coreplay.tasks import Task, make

_RUN_ID = re.compile("[0-9a-f]{32}")
_OPTION = re.compile("[a-z_]{1,40}")


class RunAssets(NamedTuple):
    """What all clients of one process share: made once, since it takes long."""

    config: Config
    stream: FederatedStream
    task: Task
    flat: FlatModel


@lru_cache(maxsize=1)
def _assets(config: str, artifacts: tuple[tuple[str, str], ...], plugins: str, data: str | None) -> RunAssets:
    """Make what a run needs; `plugins` are loaded already, and tell it from what was made with others."""
    given = json.loads(config)
    if data is not None:  # this node's own data instead of the server's
        given["stream"]["options"]["path"] = data
        given["stream"]["num_clients"] = None
    given["task"]["options"] |= dict(artifacts)
    made = Config.make(given)
    stream = sample_clients(load(made.stream.source, **made.stream.options), made.stream)
    task = make(made.task.name, stream, **made.task.options)
    return RunAssets(made, stream, task, FlatModel(task.model(0)))


class NodeClient:
    """Answers the requests of one run for the client of a node."""

    def __init__(self, node: Node, run: str) -> None:
        self._node, self._run, self._folder = node, run, node.folder / run

    def answer(self, request: Request) -> Reply:
        """Do what a request asks; the reply to one that fails has neither a traceback nor any data in it."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.set_num_threads(self._node.threads)
        try:
            if not _RUN_ID.fullmatch(self._run):
                raise RefusedError("the run's id is not valid")
            with threadpool_limits(self._node.threads):
                if isinstance(request, Join):
                    return self._join(request)
                assets, folder = self._joined(), self._folder / str(request.period)
                if isinstance(request, Select | Contribute | SecureStep | Settle):
                    request = self._with_model(request, folder)
                with Store.open(self._folder / "buffers.sqlite") as store:
                    runtime = ClientRuntime(*assets, store, folder)
                    reply = runtime.handle(self._client(assets), request)
                if isinstance(request, Select | Settle):
                    clear_before(self._folder, request.period)
            if not _is_finite(list(reply.small_fields().values())):
                raise RefusedError("its metrics are NaN or infinite")
            return reply
        except Exception as error:
            return failure(error, request)

    def _join(self, request: Join) -> Reply:
        """Learn of the run, go back to the buffers that count, and say how much data this client has."""
        artifacts = {}
        for option, text in request.artifacts.items():
            if not _OPTION.fullmatch(option):
                raise RefusedError("an artifact of the task is not named like an option")
            artifacts[option] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            if not self._artifact(artifacts[option]).exists():
                write_text(self._artifact(artifacts[option]), text)
        known = {"config": request.config, "artifacts": artifacts, "plugins": request.plugins}
        assets = self._load(known)
        write_json(self._folder / "config.json", known)
        client = self._client(assets)
        with Store.open(self._folder / "buffers.sqlite") as store:
            store.rewind(request.rewind_to)
            buffer = store.load(client)
        number = assets.stream.clients.index(client)
        train, test = (assets.stream.counts(split)[number].tolist() for split in ("train", "test"))
        held: dict[str, Any] = {"kept": len(buffer.items), "held": buffer.period, "state_id": self._node.state_id}
        return Joined(train=train, test=test, **held).answering(request, client)

    def _joined(self) -> RunAssets:
        """Return what the run needs, by what the server sent when this client joined."""
        place = self._folder / "config.json"
        if not place.exists():
            raise RefusedError("this client has not joined the run: its state was lost, or the request never came")
        return self._load(read_json(place))

    def _load(self, known: dict[str, Any]) -> RunAssets:
        config: dict[str, Any] = dict(known["config"])
        named = config.get("plugins") or []
        if (named or known["plugins"]) and not self._node.plugins:
            raise RefusedError(
                "this run has plugins, code that the server sends: a node runs it only if it is started with the node "
                "config plugins=true"
            )
        config["plugins"] = [name for name in named if not name.endswith(".py")]  # modules installed here
        make_folder(self._folder, private=True)
        try:
            load_sources(known["plugins"], self._folder / "plugins")
        except InputError as error:  # about the server's own code
            raise RefusedError(str(error)) from None
        artifacts = tuple((option, str(self._artifact(digest))) for option, digest in known["artifacts"].items())
        return _assets(json.dumps(config), artifacts, json.dumps(known["plugins"]), self._node.data)

    def _artifact(self, digest: str) -> Path:
        """Return the place of an artifact of the task: one for all clients here, which share it."""
        return self._node.state / "tasks" / f"{digest}.json"

    def _client(self, assets: RunAssets) -> str:
        clients, client, number = assets.stream.clients, self._node.client, self._node.partition
        if client is not None:
            if client not in clients:
                raise RefusedError(f"client-id {client[:40]!r} is not in this node's data")
            return client
        assert number is not None, "checked when the node config was read"
        if number >= len(clients):
            raise RefusedError(f"partition-id {number}: the stream has {len(clients)} clients")
        return clients[number]

    def _with_model(self, request: Request, folder: Path) -> Request:
        """Keep the model that a request brings for the period's later requests, which come without it."""
        place = folder / "model.safetensors"
        try:
            known = load_file(place)[MODEL] if place.exists() else None
        except (OSError, SafetensorError, KeyError):
            known = None
        if MODEL not in request.arrays:
            if known is None:
                raise RefusedError(f"this client does not have the model of period {request.period} any more")
            return replace(request, arrays={MODEL: known})
        if known is None or not np.array_equal(known, request.model):
            shutil.rmtree(folder, ignore_errors=True)  # gradients of another model, from before a resume
            with atomic_write(place, private=True) as temporary:
                save_file({MODEL: np.ascontiguousarray(request.model)}, temporary)
        return request


def _is_finite(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def clear_before(folder: Path, period: int) -> None:
    """Remove the scratch folders of earlier periods; this one's may be needed again."""
    for place in folder.iterdir():
        if place.is_dir() and place.name.isdigit() and int(place.name) < period:
            shutil.rmtree(place, ignore_errors=True)
