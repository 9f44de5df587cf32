"""`run`: from a configuration to a finished run."""

import pickle
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from coreplay.data import FederatedStream, load
from coreplay.errors import InputError
from coreplay.gradients import select_parameters
from coreplay.learning import FlatModel
from coreplay.learning.training import check_task
from coreplay.plugins import load_plugins
from coreplay.replay import Store
from coreplay.runtime.client import public_samples
from coreplay.runtime.config import AUTO, FLOWER, GIVEN, PROCESSES, SERIAL, SIMULATION, Config, StreamConfig
from coreplay.runtime.engines.host import BUFFERS
from coreplay.runtime.engines.importing import check_cells, check_main, check_missing, end_child
from coreplay.runtime.engines.machine import MachineEngine
from coreplay.runtime.engines.processes import ProcessesEngine, cores
from coreplay.runtime.engines.serial import SerialEngine
from coreplay.runtime.events import Event, Observer
from coreplay.runtime.observers import check_alone, watching
from coreplay.runtime.result import Run
from coreplay.runtime.run_dir import CHECKPOINT, STREAM, RunFolder
from coreplay.runtime.strategy import ALL, NONE
from coreplay.runtime.tracker import check_trackers
from coreplay.runtime.trainer import Trainer, Vector, check
from coreplay.seeding import generator
from coreplay.tasks import Task, make
from coreplay.tasks.base import EVALUATION_BATCH

FEW_TRAININGS = 200  # of one client in one round: about as long as worker processes take to start
# the engines outside this package: a module with a function `launch`, imported when a run names it
LAUNCHERS = {SIMULATION: "coreplay.flower.simulation", FLOWER: "coreplay.flower.launch"}


@dataclass(frozen=True)
class Prepared:
    """What several runs may share: the stream, the task, and the model that they start from.

    The first `trainable` numbers of `start` are the model's trainable parameters, the rest are its buffers.
    """

    stream: FederatedStream
    task: Task
    start: Vector
    trainable: int


def prepare(config: Config, stream: FederatedStream | None = None, task: Task | None = None) -> Prepared:
    """Make the stream, the task and the first model of a run, and check that they fit the configuration."""
    for name, named, found in (("stream", config.stream.source, stream), ("task", config.task.name, task)):
        if named == GIVEN and found is None:
            raise InputError(f"the {name} of this run is an object of the program that began it: pass it as {name}=")
    stream = _stream(config) if stream is None else sample_clients(stream, config.stream)
    check(config, stream)  # before a vocabulary is trained
    task = make(config.task.name, stream, **config.task.options) if task is None else task
    flat = FlatModel(task.model(config.seed))
    prepared = Prepared(stream, task, flat.numpy().copy(), flat.trainable)
    check_fit(config, prepared)
    return prepared


def check_fit(config: Config, prepared: Prepared) -> None:
    """Raise an `InputError` if the configuration can't work with a stream and a task that runs share."""
    stream, task, replay = prepared.stream, prepared.task, config.replay
    check(config, stream)
    for name, value, wanted in (("quota", replay.quota, "class"), ("strategy", replay.strategy, "class_balanced")):
        if value == wanted and not stream.label_names:
            raise InputError(f"replay.{name} = {value!r} needs labels, and the stream has none: use periods instead")
    flat = FlatModel(task.model(config.seed))
    select_parameters(flat.model, config.gradients.parameters)  # a pattern that fits nothing is said now
    check_task(config.methods(), flat, task, stream.of_period(0, "train")[:2])
    if replay.public:
        try:
            public = public_samples(config, stream)
            for at in range(0, len(public), EVALUATION_BATCH):
                task.collate(public[at : at + EVALUATION_BATCH])
        except InputError as error:
            raise InputError(f"replay.public: {error}") from None


def _stream(config: Config) -> FederatedStream:
    return sample_clients(load(config.stream.source, **config.stream.options), config.stream)


def sample_clients(stream: FederatedStream, config: StreamConfig) -> FederatedStream:
    """Return the stream of as many clients as the configuration asks for, drawn by its seed."""
    if config.num_clients is None:
        return stream
    if config.num_clients > len(stream.clients):
        raise InputError(f"stream.num_clients = {config.num_clients}: the stream has {len(stream.clients)}")
    rng = generator(config.client_seed, "client sample")
    chosen = rng.choice(len(stream.clients), config.num_clients, replace=False)
    return stream.only([stream.clients[k] for k in np.sort(chosen)])


def finished(folder: Path | str) -> dict[str, Any] | None:
    """Return the summary of a finished run, None if it is not finished; an `InputError` if its data has changed."""
    place = RunFolder.open(folder)
    summary = place.summary()
    if summary is not None and (place.path / STREAM).exists():
        config = place.config()
        try:
            load_plugins(config.plugins)
            stream = _stream(config)
        except (InputError, OSError):  # the data is not there any more, but the figures are
            return summary
        place.check_stream(stream, config.periods)
    return summary


def run(
    config: Config,
    folder: Path | str | None = None,
    *,
    resume: bool = False,
    stream: FederatedStream | None = None,
    task: Task | None = None,
    observer: Observer | None = None,
    prepared: Prepared | None = None,
    engine: MachineEngine | None = None,
) -> Run:
    """Carry out a run, or go on with one.

    Parameters
    ----------
    config : Config
        The configuration; when going on, that of the folder counts, except for the engine's workers and checkpoints.
    folder : path, optional
        Where the run is kept; by default `runs/NAME`, with a name made of strategy, budget and seed.
    resume : bool
        Go on with the run in the folder, from its last checkpoint.
    stream : FederatedStream, optional
        The data, instead of the source that the configuration names. It must be given again to resume the run.
    task : Task, optional
        The task, instead of the one that the configuration names; see `Task.of`.
    observer : function, optional
        Called with every `Event` of the run.
    prepared : Prepared, optional
        The stream, the task and the first model, to share them between runs; made if absent.
    engine : ProcessesEngine or SerialEngine, optional
        An engine, to share it between runs; the one that the configuration names is started if absent.
    """
    if not isinstance(config, Config):
        raise InputError(f"config must be a Config: got {config!r}; use Config.load for a file, Config.make for a dict")
    if config.engine.name != SERIAL:
        end_child()
    config = _with_objects(config, stream, task)
    path = Path(folder) if folder is not None else Path("runs") / default_name(config)
    if resume:
        place = RunFolder.open(path)
        begun = place.config()
        # they fix the order of additions, and so the result
        same = {"aggregation_groups": begun.engine.aggregation_groups}
        config = begun.model_copy(update={"engine": config.engine.model_copy(update=same)})
        place.checkpoint()  # what is damaged is said at once, and not when the workers are there
    else:
        RunFolder.check_free(path)
    config.checked()
    check_trackers(config.trackers, installed=True)
    if config.engine.name in (SIMULATION, FLOWER):
        return _over_flower(config, path, resume, observer, prepared)
    if config.engine.name == PROCESSES:
        _check_importable(config, task)
    if resume:
        check_alone(path)
        _check_buffers(place)
    if prepared is not None:
        check_fit(config, prepared)
    things = prepared or prepare(config, stream, task)
    with ExitStack() as stack:
        serial = config.engine.name == SERIAL or (config.engine.name == AUTO and _is_small(config, things))
        if engine is None and serial:
            engine = stack.enter_context(SerialEngine(things.stream, things.task, things.start))
        if engine is None:
            workers = config.engine.workers or cores()
            if observer is not None:
                observer(Event("starting", 0, 0, {"workers": workers}))
            engine = stack.enter_context(ProcessesEngine(things.stream, things.task, things.start, workers))
        check_missing(config, engine.unknown_there)
        if not resume:  # only now: a program that workers can't import leaves no folder
            place = RunFolder.create(path, config)
        place.check_stream(things.stream, config.periods)
        watched = stack.enter_context(watching(config, path, observer))
        engine.begin(config, path)
        return Trainer(config, things.task, engine, place, things.start, things.trainable, watched).run()


def _is_small(config: Config, things: Prepared) -> bool:
    """Return whether a run is over before worker processes would have started, or needs what they can't import."""
    federated = config.federated
    able = (things.stream.counts("train") > 0).sum(axis=0)[: config.periods].tolist()
    sampled = [min(count, federated.clients_per_round or count) for count in able]
    if sum(federated.rounds_of(t) * count for t, count in enumerate(sampled)) <= FEW_TRAININGS:
        return True
    try:
        _check_importable(config, things.task)
    except InputError:
        return True
    return False


def _check_importable(config: Config, task: Task | None) -> None:
    """Raise an `InputError` if worker processes can't have the program, what it registered, or the task."""
    check_main()
    check_cells(config)
    try:
        pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"the task can't be sent to worker processes ({error}): define its functions at the top level of a "
            'module, or set engine.name = "serial"'
        ) from None


def _with_objects(config: Config, stream: Any, task: Any) -> Config:
    """Note in the configuration that the stream or the task is an object, after checking that the engine can use it."""
    for name, found, kind in (("stream", stream, FederatedStream), ("task", task, Task)):
        if found is None:
            continue
        if not isinstance(found, kind):
            raise InputError(f"{name} must be a {kind.__name__}: got {found!r}")
        if config.engine.name in (SIMULATION, FLOWER):
            raise InputError(f"{name}= can't be used with engine {config.engine.name!r}: register it and name it")
        part = {"source" if name == "stream" else "name": GIVEN, "options": {}}
        config = config.model_copy(update={name: getattr(config, name).model_copy(update=part)})
    return config


def _check_buffers(place: RunFolder) -> None:
    """Raise an `InputError` unless the store holds the buffers that the run had at its last checkpoint."""
    found, path = place.checkpoint(), place.path / BUFFERS
    if found is None or not found.buffers:
        return
    held = ""
    if path.exists():
        with Store.open(path) as store:
            held = store.fingerprint((found.progress.period, found.progress.round))
    if held != found.buffers:
        what = "holds other buffers than those" if path.exists() else "is missing, and with it the buffers"
        raise InputError(
            f"{str(path)!r} {what} that the run kept after period {found.progress.period}: restore it, or delete "
            f"{CHECKPOINT} too and start the run again with --resume"
        )


def _over_flower(config: Config, path: Path, resume: bool, observer: Observer | None, prepared: Prepared | None) -> Run:
    name = config.engine.name
    if find_spec("flwr") is None:
        raise InputError(f"engine {name!r} needs Flower: install coreplay with its extra, coreplay[flower]")
    found: Run = import_module(LAUNCHERS[name]).launch(config, path, prepared, resume=resume, observer=observer)
    return found


def default_name(config: Config) -> str:
    """Return the name of a run's folder.

    >>> default_name(Config())
    'synthetic-corrective-20-seed0'
    >>> default_name(Config.make({"replay": {"strategy": "none"}}))
    'synthetic-none-seed0'
    """
    replay = config.replay
    budget = f"-{replay.budget_fraction:g}" if replay.budget_fraction else f"-{replay.budget}"
    if replay.strategy in (NONE, ALL):
        budget = ""
    return f"{config.stream.source}-{replay.strategy}{budget}-seed{config.seed}"
