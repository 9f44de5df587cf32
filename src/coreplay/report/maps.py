"""Maps of the gradient space: where the samples of a few clients lie, and which of them each strategy keeps.

The map of a client is a kernel PCA of the gram of all samples it was offered before the last period, at the last model
of one run: samples with similar gradient directions lie close together. A good selection covers the map.
"""

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data import FederatedStream, Samples
from coreplay.errors import InputError
from coreplay.learning import FlatModel
from coreplay.replay import Store
from coreplay.report.charts import MUTED, Axis, Figure, Lines, Panel, SeedStats, Series, Style
from coreplay.report.compare import Group
from coreplay.report.load import ANY, Finished
from coreplay.runtime import RunFolder, prepare
from coreplay.runtime.client import ClientPool, ClientRuntime
from coreplay.runtime.strategy import NONE

MAP = "map"  # the name of the figure
MAX_SAMPLES = 500  # per map: more would hide each other
STORE = "buffers.sqlite"


@dataclass(frozen=True)
class ClientMap:
    """The samples of one client in the plane, and the fraction of the variance along each axis."""

    client: str
    pool: ClientPool
    points: NDArray[np.float64]
    variance: tuple[float, float]


def gradient_map(group: Group, clients: int, *, texts: bool, say: Callable[[str], None]) -> Figure:
    """Draw the maps of a few clients; an `InputError` says why there are none."""
    stored = [run for run in group.runs if run.budget != ANY and (run.run.folder / STORE).exists()]
    if not stored:
        raise InputError("no run has stored the buffers of its clients")
    seeds = {run.key for run in stored}
    bases = [run for key, run in group.base.items() if key in seeds] or stored
    base = min(bases, key=lambda run: run.key)
    kept = [run for run in stored if run.key == base.key]
    kept.sort(key=lambda run: (group.budgets.index(run.budget), group.labels.index(run.label)))
    with TemporaryDirectory() as scratch:
        maps = _maps(base, kept[0], clients, Path(scratch), say)
        panels = []
        for run in kept:
            with _open_copy(run, Path(scratch)) as store:
                buffers = store.load_many([each.client for each in maps])
            keys = {name: {item.key for item in buffer.items} for name, buffer in buffers.items()}
            panels += [_panel(group, each, run, keys[each.client], texts) for each in maps]
    order = [each.client for each in maps]
    panels.sort(key=lambda panel: order.index(panel.choice["client"]))
    model = "without replay" if base.config.replay.strategy == NONE else f"with {base.label}"
    return Figure(
        MAP,
        "Buffer contents on a map of the gradient space",
        "Each point is a sample that the client was offered; samples with similar gradient directions lie close "
        "together. Large marks are the samples that the strategy kept at the end. Sketched gradients at the last "
        f"model {model}, seed {base.key[0]}; the axes have no meaning of their own.",
        tuple(panels),
    )


def _maps(base: Finished, kept: Finished, clients: int, scratch: Path, say: Callable[[str], None]) -> list[ClientMap]:
    say("loading the stream and the model for the map of the gradient space")
    gradients = base.config.gradients.model_copy(update={"backend": "sketch"})
    config = base.config.model_copy(update={"baseline": None, "gradients": gradients})
    checkpoint = RunFolder(base.run.folder).checkpoint()
    if checkpoint is None:
        raise InputError(f"the run in {str(base.run.folder)!r} has no checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself has already warned about the stream
        prepared = prepare(config)
    stream = prepared.stream
    last = (config.periods or stream.periods) - 1
    model = FlatModel(prepared.task.model(config.seed))
    model.load(checkpoint.values)
    found = []
    with _open_copy(kept, scratch) as store:
        runtime = ClientRuntime(config, stream, prepared.task, model, store, scratch)
        for client in _choose(stream, last, clients):
            pool = _pool(stream, client, last)
            say(f"gradients of {len(pool)} samples of client {client!r}")
            gram = runtime.gradients(client, pool, checkpoint.values).gram()
            found.append(ClientMap(client, pool, *_kernel_pca(gram)))
    if not found:
        raise InputError("no client was offered two samples before the last period")
    return found


def _choose(stream: FederatedStream, last: int, clients: int) -> list[str]:
    """Return the clients with the largest pools that a map can show."""
    sizes = stream.counts("train")[:, :last].sum(axis=1)
    able = [k for k in np.argsort(-sizes, kind="stable") if sizes[k] > 1]
    fitting = [k for k in able if sizes[k] <= MAX_SAMPLES] or able[::-1]
    return [stream.clients[k] for k in fitting[:clients]]


def _pool(stream: FederatedStream, client: str, last: int) -> ClientPool:
    samples = Samples.joined([stream.samples(client, period) for period in range(last)])
    return ClientPool(samples, last, 0)


def _kernel_pca(gram: NDArray[Any]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return the first two principal components in the space of the gram, and their fractions of the variance."""
    centred = np.asarray(gram, dtype=np.float64)
    centred = centred - centred.mean(axis=0) - centred.mean(axis=1)[:, None] + centred.mean()
    values, vectors = np.linalg.eigh(centred)
    first = np.maximum(values[::-1][:2], 0.0)
    points = vectors[:, ::-1][:, :2] * np.sqrt(first)
    for k in range(2):  # the sign of an eigenvector is arbitrary: put the farthest sample on the positive side
        points[:, k] *= np.sign(points[np.argmax(np.abs(points[:, k])), k]) or 1.0
    total = max(float(np.trace(centred)), 1e-12)
    return points, (float(first[0]) / total, float(first[1]) / total)


def _open_copy(run: Finished, scratch: Path) -> Store:
    """Open a copy of a run's buffers: opening a store writes to it, and a report must not change runs."""
    for name in (STORE, f"{STORE}-wal"):
        (scratch / name).unlink(missing_ok=True)
        if (run.run.folder / name).exists():
            shutil.copyfile(run.run.folder / name, scratch / name)
    return Store.open(scratch / STORE)


def _panel(group: Group, found: ClientMap, run: Finished, kept: set[str], texts: bool) -> Panel:
    samples = found.pool.samples
    inside = np.array([f"{number:016x}" in kept for number in samples.ids.tolist()])
    notes = [f"arrived in period {period + 1}" for period in samples.arrived.tolist()]
    if texts and not isinstance(samples.content, np.ndarray):
        notes = [f"{note}: {text}" for note, text in zip(notes, samples.texts, strict=True)]
    series = []
    for label, mask, style in (
        ("offered", ~inside, Style(MUTED)),
        (f"kept by {run.label}", inside, group.styles[run.label]),
    ):
        rows = np.flatnonzero(mask)
        y = tuple(SeedStats((value,)) for value in found.points[rows, 1].tolist())
        series.append(
            Series(label, style, tuple(found.points[rows, 0].tolist()), y, notes=tuple(notes[k] for k in rows))
        )
    x_axis, y_axis = (
        Axis(f"component {k + 1}", detail=f"{share:.0%} of the variance") for k, share in enumerate(found.variance)
    )
    choice = {"client": found.client, "budget": run.budget, "strategy": run.label}
    return Panel(Lines(x_axis, y_axis, tuple(series), scattered=True), choice)
