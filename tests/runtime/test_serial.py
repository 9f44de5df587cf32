"""The serial engine: everything in one process, wherever the program comes from."""

import subprocess
import sys

import pytest

from coreplay.replay import Store
from coreplay.runtime import Config, SerialEngine, WorkerError, prepare, run
from coreplay.runtime.events import Problem
from tests.runtime.common import train_round

DIGITS = {
    "stream": {"source": "digits", "options": {"num_clients": 3, "num_periods": 3}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {"rounds": 1},
    "replay": {"budget": 3, "coordination_rounds": 1},
    "gradients": {"sketch_size": 64},
    "engine": {"name": "serial"},
}


@pytest.fixture(scope="module")
def things():
    return prepare(Config.make(DIGITS))


def test_a_run_stops_and_goes_on(things, tmp_path):
    whole = run(Config.make(DIGITS), tmp_path / "whole", prepared=things)

    def stop(event):
        if event.kind == "round" and event.period == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Config.make(DIGITS), tmp_path / "stopped", prepared=things, observer=stop)
    assert run(Config.make(DIGITS), tmp_path / "stopped", resume=True, prepared=things).metrics == whole.metrics
    with Store.open(tmp_path / "whole/buffers.sqlite") as a, Store.open(tmp_path / "stopped/buffers.sqlite") as b:
        assert a.load_many(a.clients()) == b.load_many(b.clients())


def test_a_client_that_fails_is_tried_once_more_and_named(things, tmp_path, monkeypatch):
    collate, left, told = things.task.collate, [1], []

    def failing(samples, view=None):
        if view is not None and left[0]:
            left[0] -= 1
            raise OSError("the sensor is gone")
        return collate(samples, view)

    monkeypatch.setattr(things.task, "collate", failing)
    with SerialEngine(things.stream, things.task, things.start) as engine:
        engine.begin(Config.make(DIGITS), tmp_path)
        engine.rewind(-1)
        train_round(engine, things.stream.clients, things.start, told.append)
        texts = [report.text for report in told if isinstance(report, Problem)]
        assert any("failed and is tried again: the sensor is gone" in text for text in texts)
        left[0] = 2
        with pytest.raises(WorkerError, match="failed twice: the sensor is gone") as caught:
            train_round(engine, things.stream.clients, things.start, told.append)
        assert isinstance(caught.value.__cause__, OSError)


PROGRAM = f"""
import coreplay
from coreplay.selection import selector

@selector("first_ones")
def first_ones(pool, budget, rng):
    "Keep the first samples."
    return list(range(budget))

config = coreplay.Config.make({DIGITS!r}, {{"replay.strategy": "first_ones"}})
print(coreplay.run(config, "run").metrics["accuracy"])
"""


@pytest.mark.parametrize("how", ["stdin", "-c", "file"])
def test_a_program_needs_no_guard_and_may_define_a_selector(how, tmp_path):
    """As in a notebook's cell."""
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = {"stdin": ["-"], "-c": ["-c", PROGRAM], "file": ["program.py"]}[how]
    done = subprocess.run(
        [sys.executable, *arguments], input=PROGRAM, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split(",")) == 3
    assert (tmp_path / "run/summary.json").exists()
