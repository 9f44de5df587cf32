"""Maps of the gradient space: where the samples of a few clients lie, and which of them each strategy keeps.

The map of a client is a kernel PCA of the gram of everything it was offered before the last period, at the last model
of one run: gradients that point the same way lie close together. A good choice covers the map.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data import FederatedStream, Samples
from coreplay.engines import prepare
from coreplay.errors import InputError
from coreplay.federated import FlatModel, RunFolder, Site
from coreplay.federated.pools import ClientPool
from coreplay.federated.strategy import NONE
from coreplay.replay import Store
from coreplay.report.charts import MUTED, Axis, Figure, Panel, Points, Series, Style
from coreplay.report.gather import Finished
from coreplay.report.groups import Group
from coreplay.report.numbers import Spread

LARGEST = 500  # samples on a map: more hide each other
STORE = "buffers.sqlite"


@dataclass(frozen=True)
class Map:
    """One client's samples in the plane."""

    client: str
    pool: ClientPool
    places: NDArray[np.float64]
    shares: tuple[float, float]  # of the variance, along each axis


def gradient_map(
    group: Group, clients: int, *, texts: bool, say: Callable[[str], None]
) -> tuple[Figure | None, str | None]:
    """Draw maps of a few clients; else say why there are none."""
    if not clients:
        return None, None
    left = [run for run in group.runs if not run.is_reference and (run.run.folder / STORE).exists()]
    seeds = {run.key for run in left}
    base = min((run for key, run in group.base.items() if key in seeds), default=None, key=lambda run: run.key)
    base = base or min(left, default=group.runs[0], key=lambda run: run.key)
    kept = [run for run in left if run.key == base.key]
    kept.sort(key=lambda run: (group.budgets.index(run.budget), group.labels.index(run.label)))
    if not kept:
        return None, "There is no map of the gradient space: no run left the buffers of its clients behind."
    try:
        with TemporaryDirectory() as scratch:
            maps = _maps(base, kept[0], clients, Path(scratch), say)
            buffers = {run.run.folder: _keys(run, [m.client for m in maps], Path(scratch)) for run in kept}
    except (InputError, OSError) as error:
        return None, f"There is no map of the gradient space: {error}"
    if not maps:
        return None, "There is no map of the gradient space: no client was offered two samples before the last period."
    panels = [_panel(group, found, run, buffers[run.run.folder], texts) for found in maps for run in kept]
    where = "without replay" if base.config.replay.strategy == NONE else f"with {base.label}"
    figure = Figure(
        "map",
        "What buffers keep, on a map of the gradient space",
        "A point is a sample that the client was offered; samples whose gradients point the same way lie close "
        f"together. Large marks are what the strategy kept at the end. Seen from the last model {where}, seed "
        f"{base.key[0]}, by sketched gradients; the axes have no meaning of their own.",
        tuple(panels),
    )
    return figure, None


def _maps(base: Finished, kept: Finished, clients: int, scratch: Path, say: Callable[[str], None]) -> list[Map]:
    say("making the stream and the model for the map of the gradient space")
    gradients = base.config.gradients.model_copy(update={"backend": "sketch"})
    config = base.config.model_copy(update={"baseline": None, "gradients": gradients})
    checkpoint = RunFolder(base.run.folder).checkpoint()
    if checkpoint is None:
        raise InputError(f"the run in {str(base.run.folder)!r} has no checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the stream leaves out was said when the run was carried out
        things = prepare(config)
    last = (config.periods or things.stream.periods) - 1
    flat = FlatModel(things.task.model(config.seed))
    flat.load(checkpoint.values)
    chosen = _chosen(things.stream, last, clients)
    with _opened(kept, scratch) as store:
        site = Site(config, things.stream, things.task, flat, store, scratch)
        found = []
        for client in chosen:
            pool = _pool(things.stream, client, last)
            say(f"gradients of {len(pool)} samples of client {client!r}")
            found.append(Map(client, pool, *_projected(site.gradients(client, last, pool, checkpoint.values).gram())))
    return found


def _chosen(stream: FederatedStream, last: int, clients: int) -> list[str]:
    """Choose the clients with the largest pools that a map can show."""
    sizes = stream.counts("train")[:, :last].sum(axis=1)
    able = [k for k in np.argsort(-sizes, kind="stable") if sizes[k] > 1]
    fitting = [k for k in able if sizes[k] <= LARGEST] or able[::-1]
    return [stream.clients[k] for k in fitting[:clients]]


def _pool(stream: FederatedStream, client: str, last: int) -> ClientPool:
    parts = [stream.samples(client, period) for period in range(last)]
    samples = Samples.joined(parts)
    return ClientPool(samples, np.ones(len(samples), dtype=bool), 0)


def _projected(gram: NDArray[Any]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return the first two principal components in the space of the gram, and their shares of the variance."""
    centred = np.asarray(gram, dtype=np.float64)
    centred = centred - centred.mean(axis=0) - centred.mean(axis=1)[:, None] + centred.mean()
    values, vectors = np.linalg.eigh(centred)
    first = np.maximum(values[::-1][:2], 0.0)
    places = vectors[:, ::-1][:, :2] * np.sqrt(first)
    for k in range(2):  # eigenvectors have no sign of their own: the farthest sample lies on the positive side
        places[:, k] *= np.sign(places[np.argmax(np.abs(places[:, k])), k]) or 1.0
    total = max(float(np.trace(centred)), 1e-12)
    return places, (float(first[0]) / total, float(first[1]) / total)


def _opened(run: Finished, scratch: Path) -> Store:
    """Open a copy of a run's buffers: opening a store writes to it, and a report shall leave runs as they are."""
    for name in (STORE, f"{STORE}-wal"):
        if (run.run.folder / name).exists():
            shutil.copyfile(run.run.folder / name, scratch / name)
        else:
            (scratch / name).unlink(missing_ok=True)
    return Store.open(scratch / STORE)


def _keys(run: Finished, clients: Sequence[str], scratch: Path) -> dict[str, set[str]]:
    with _opened(run, scratch) as store:
        return {name: {item.key for item in buffer.items} for name, buffer in store.load_many(clients).items()}


def _panel(group: Group, found: Map, run: Finished, kept: dict[str, set[str]], texts: bool) -> Panel:
    names = [f"{number:016x}" for number in found.pool.samples.ids.tolist()]
    inside = np.array([name in kept[found.client] for name in names])
    notes = list(_notes(found.pool, texts))
    looks = (("offered", ~inside, Style(MUTED)), (f"kept by {run.label}", inside, group.style(run.label)))
    series = []
    for legend, rows, style in looks:
        chosen = np.flatnonzero(rows)
        series.append(
            Series(
                legend,
                style,
                tuple(found.places[chosen, 0].tolist()),
                tuple(Spread((y,)) for y in found.places[chosen, 1].tolist()),
                notes=tuple(notes[k] for k in chosen),
            )
        )
    x, y = (Axis(f"component {k + 1}", more=f"{share:.0%} of the variance") for k, share in enumerate(found.shares))
    return Panel(
        Points(x, y, tuple(series), bare=True),
        {"client": found.client, "budget": run.budget, "strategy": run.label},
    )


def _notes(pool: ClientPool, texts: bool) -> Iterator[str]:
    """Say of each sample when it arrived, and what it is only if that was asked for."""
    shown = pool.samples.texts if texts and not isinstance(pool.samples.content, np.ndarray) else [""] * len(pool)
    for period, text in zip(pool.samples.arrived.tolist(), shown, strict=True):
        yield f"arrived in period {period + 1}" + (f": {text}" if text else "")
