"""Small real runs for the tests of the report, and for its benchmark: real folders, seconds to make."""

from dataclasses import replace
from pathlib import Path

from coreplay.learning import FlatModel
from coreplay.runtime import Config, SerialEngine, prepare, run

TINY = {
    "stream": {"options": {"num_clients": 5, "num_periods": 3, "samples": 10}},
    "task": {
        "options": {
            "num_layers": 1,
            "hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 32,
            "vocabulary_size": 200,
            "max_length": 16,
        }
    },
    "federated": {"rounds": 1, "batch_size": 8},
    "replay": {"budget": 2, "coordination_rounds": 2},
    "gradients": {"sketch_size": 64},
    "engine": {"workers": 1, "checkpoint_seconds": 1000.0},
}
SEEDS = (0, 1)
STRATEGIES = (
    {"replay.strategy": "none"},
    {"replay.strategy": "full_history"},
    *(
        {"replay.strategy": name, "replay.budget": budget}
        for name in ("naive_uniform", "corrective")
        for budget in (2, 4)
    ),
)


def make_runs(folder: Path, seeds: tuple[int, ...], base: dict = TINY, changes: tuple[dict, ...] = STRATEGIES) -> Path:
    """Carry out runs of some strategies and seeds in this process; return the folder that holds them."""
    things = prepare(Config.make(base))
    with SerialEngine(things.stream, things.task, things.start) as engine:
        for seed in seeds:
            start = FlatModel(things.task.model(seed)).numpy().copy()
            for change in changes:
                config = Config.make(base, change | {"seed": seed})
                name = "-".join(str(value) for value in change.values())
                path = folder / f"{name}-seed{seed}"
                run(config, path, prepared=replace(things, start=start), engine=engine)
    return folder
