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
import re
import shutil
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from coreplay.data import FederatedStream, load
from coreplay.errors import InputError, RefusedError
from coreplay.files import atomic_write, make_folder, read_json, write_json, write_text
from coreplay.flower.node import Node
from coreplay.flower.state_lock import state_id
from coreplay.learning import FlatModel
from coreplay.plugins import load_sources
from coreplay.replay import Store, path_for
from coreplay.runtime.api import sample_clients
from coreplay.runtime.client import ClientRuntime
from coreplay.runtime.config import Config
from coreplay.runtime.requests import MODEL, Contribute, Join, Joined, Reply, Request, SecureStep, Select, Settle
from coreplay.tasks import Task, make

_RUN_ID = re.compile("[0-9a-f]{32}")
_OPTION = re.compile("[a-z_]{1,40}")


@dataclass(frozen=True)
class RunAssets:
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
        if not _RUN_ID.fullmatch(run):
            raise RefusedError("the run's id is not valid")
        self._node = node
        self._folder = path_for(node.state, node.owner).with_suffix("") / run

    def answer(self, request: Request) -> Reply:
        """Do what a request asks."""
        if isinstance(request, Join):
            return self._join(request)
        assets, folder = self._assets(), self._folder / str(request.period)
        client = self._client(assets)
        if isinstance(request, Select | Contribute | SecureStep | Settle):
            request = self._with_model(request, folder)
        with Store.open(self._folder / "buffers.sqlite") as store:
            runtime = ClientRuntime(assets.config, assets.stream, assets.task, assets.flat, store, folder)
            reply = runtime.handle(client, request)
        if isinstance(request, Select | Settle):
            clear_before(self._folder, request.period)
        return reply

    def _join(self, request: Join) -> Reply:
        """Learn of the run, go back to the buffers that count, and say how much data this client has."""
        if (request.plugins or request.config.get("plugins")) and not self._node.plugins:
            raise RefusedError(
                "this run has plugins, code that the server sends: a node runs it only if it is started with the node "
                "config plugins=true"
            )
        artifacts = {}
        for option, text in request.artifacts.items():
            if not _OPTION.fullmatch(option):
                raise RefusedError("an artifact of the task is not named like an option")
            artifacts[option] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            if not self._artifact(artifacts[option]).exists():
                write_text(self._artifact(artifacts[option]), text)
        make_folder(self._folder, private=True)
        known = {"config": request.config, "artifacts": artifacts, "plugins": request.plugins}
        write_json(self._folder / "config.json", known)
        assets = self._assets()
        client = self._client(assets)
        with Store.open(self._folder / "buffers.sqlite") as store:
            store.rewind(request.rewind_to)
            buffer = store.load(client)
        number = assets.stream.clients.index(client)
        train, test = (assets.stream.counts(split)[number].tolist() for split in ("train", "test"))
        held: dict[str, Any] = {"kept": len(buffer.items), "held": buffer.period, "state_id": state_id(self._node)}
        return Joined(train=train, test=test, **held).answering(request, client)

    def _assets(self) -> RunAssets:
        place = self._folder / "config.json"
        if not place.exists():
            raise RefusedError("this client has not joined the run: its state was lost, or the request never came")
        known = read_json(place)
        config: dict[str, Any] = dict(known["config"])
        if config["plugins"] and not self._node.plugins:
            raise RefusedError("this run has plugins, and the node config no longer says plugins=true")
        config["plugins"] = [name for name in config["plugins"] if not name.endswith(".py")]  # modules installed here
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
        clients = assets.stream.clients
        if self._node.client is not None:
            if self._node.client not in clients:
                raise RefusedError(f"client-id {self._node.client[:40]!r} is not in this node's data")
            return self._node.client
        assert self._node.partition is not None, "checked when the node config was read"
        if self._node.partition >= len(clients):
            raise RefusedError(f"partition-id {self._node.partition}: the stream has {len(clients)} clients")
        return clients[self._node.partition]

    def _with_model(self, request: Request, folder: Path) -> Request:
        """Keep the model that a request brings for the period's later requests, which come without it."""
        place, known = folder / "model.safetensors", folder / "model.sha256"
        if MODEL in request.arrays:
            values = np.ascontiguousarray(request.model)
            digest = hashlib.sha256(values.data).hexdigest()
            if not known.exists() or known.read_text(encoding="utf-8") != digest:
                shutil.rmtree(folder, ignore_errors=True)  # gradients of another model, from before a resume
                with atomic_write(place, private=True) as temporary:
                    save_file({MODEL: values}, temporary)
                write_text(known, digest)
            return request
        try:
            return replace(request, arrays={MODEL: load_file(place)[MODEL]})
        except (OSError, SafetensorError, KeyError):
            raise RefusedError(f"this client does not have the model of period {request.period} any more") from None


def clear_before(folder: Path, period: int) -> None:
    """Remove the scratch folders of earlier periods; this one's may be needed again."""
    for place in folder.iterdir():
        if place.is_dir() and place.name.isdigit() and int(place.name) < period:
            shutil.rmtree(place, ignore_errors=True)
