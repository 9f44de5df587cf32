"""Sweeps: what is planned, nothing twice, a failure stops nobody, and a kill changes nothing."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay.errors import InputError
from coreplay.experiments import scheduler
from coreplay.experiments.scheduler import FAILED, FINISHED, RUNNING, SweepStatus, run_sweep
from coreplay.experiments.sweep import Sweep, _written
from coreplay.files import exclusive_lock
from coreplay.replay import Store
from coreplay.runtime import Event, Run, SerialEngine, run
from coreplay.runtime.run_dir import FAILURE
from tests.cli.common import call

pytestmark = pytest.mark.xdist_group("sweep")  # which share one that was carried out
TINY = {
    "stream": {"source": "digits", "options": {"num_clients": 6, "num_periods": 3}, "num_clients": 4},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {"rounds": 1, "first_rounds": 2},
    "replay": {"budget": 2, "coordination_rounds": 1},
    "gradients": {"sketch_size": 32},
}
RECORDS = ("metrics.jsonl", "rounds.jsonl", "coordination.jsonl", "buffers.jsonl")


def contents(path):
    found = {name: (path / name).read_text() for name in RECORDS if (path / name).exists()}
    with Store.open(path / "buffers.sqlite") as store:
        return found | {"buffers": store.load_many(store.clients()), "metrics": Run.load(path).metrics}


def test_a_plan_has_every_combination_once():
    sweep = Sweep.make(
        {
            "strategies": ["none", "full_history", "polished", {"strategy": "corrective", "coordination_rounds": 1}],
            "budgets": [5, 20],
            "seeds": [3, 4],
            "grid": {"federated.learning_rate": [0.1, 0.2]},
            "run": {"preset": "small", "stream": {"num_clients": 10}},
        }
    )
    assert len(sweep.runs) == 2 * 2 * (2 + 2 * 2)
    one = next(planned for planned in sweep.runs if planned.name == "corrective-1r-20-learning_rate=0.2-seed4")
    assert one.config.replay.coordination_rounds == 1
    assert one.config.replay.budget == 20
    assert one.config.stream.client_seed == one.config.seed == 4  # another sample of clients, too
    assert len({planned.first for planned in sweep.runs}) == 4  # one a seed and rate
    assert len({planned.group for planned in sweep.runs}) == 2  # one a sample of clients


def test_what_chooses_nothing_is_there_once_whatever_the_grid_says_of_choosing():
    grid = {"replay.coordination_rounds": [1, 4], "federated.learning_rate": [0.1, 0.2]}
    sweep = Sweep.make({"strategies": ["none", "corrective"], "grid": grid, "run": {"preset": "small"}})
    names = [planned.name for planned in sweep.runs]
    assert [name for name in names if name.startswith("none")] == [
        "none-learning_rate=0.1-seed0",
        "none-learning_rate=0.2-seed0",
    ]
    assert len(names) == 2 + 4


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"strategies": []}, "strategies is empty"),
        ({"strategies": ["none"], "seeds": []}, "seeds is empty"),
        ({"strategy": ["none"]}, "did you mean 'strategies'"),
        ({"strategies": ["polishd"]}, "did you mean 'polished'"),
        ({"strategies": ["none", "none"]}, "'none-seed0' occurs twice"),
        ({"strategies": ["none"], "grid": {"seed": []}}, "grid.seed is empty"),
        ({"strategies": ["none"], "grid": {"federated.rate": [1]}}, "unknown key 'rate'"),
        (
            {"strategies": ["polished"], "budgets": [3], "grid": {"replay.budget": [1, 2]}},
            "grid.replay.budget is also set",
        ),
        (
            {
                "strategies": [{"strategy": "corrective", "coordination_rounds": 1}],
                "grid": {"replay.coordination_rounds": [4]},
            },
            "set it once",
        ),
        ({"strategies": ["polished"], "grid": {"replay.strategy": ["exact"]}}, "set it once"),
        ({"strategies": ["none"], "budgets": [1], "run": {"replay": {"bugdet": 3}}}, "bugdet"),
        ({"strategies": ["none"], "budgets": [0]}, "budgets.0 = 0: must be at least 1"),
        ({"strategies": ["none"], "budgets": ["7"]}, "budgets.0 = '7'"),
        ({"strategies": ["none"], "seeds": [True]}, "seeds.0 = True"),
        ({"strategies": [{"strategy": "none", "continual": "ewc"}]}, "strategies: continual (a list of methods"),
        ({"strategies": [{"strategy": "none", "continual": {"ewc": 3}}]}, "strategies: continual (a list of methods"),
        ({"strategies": [{"strategy": "none", "continual": ["distilation"]}]}, "did you mean 'distillation'"),
        (
            {
                "strategies": [{"strategy": "none", "continual": ["l2"]}],
                "run": {"continual": {"options": {"ewc": {"strength": 1.0}}}},
            },
            "run.continual.options.ewc are options of a method that no strategy names",
        ),
        (
            {"strategies": [{"strategy": "none", "continual": []}], "grid": {"continual.methods": [["ewc"]]}},
            "grid.continual.methods is also set",
        ),
        ({"strategies": [3]}, "strategies contains 3: strategies must be names, or tables"),
        (
            {"strategies": ["none"], "grid": {"federated": {"learning_rate": [0.1]}}},
            'grid.federated is a table: quote dotted names, "federated.learning_rate" = [...]',
        ),
        ({"strategies": ["none"], "run": {"stream": {"source": "syntetic"}}}, "did you mean 'synthetic'"),
        ({"strategies": ["none"], "run": {"stream": {"options": {"num_client": 3}}}}, "did you mean 'num_clients'"),
        ({"strategies": ["none"], "run": {"task": {"name": "masked"}}}, "unknown task 'masked'"),
        ({"strategies": ["none"], "run": {"engine": {"name": "proceses"}}}, "did you mean 'processes'"),
    ],
)
def test_a_wrong_plan_is_refused_before_any_work(data, words):
    with pytest.raises(InputError, match="sweep") as caught:
        Sweep.make(data)
    assert words in str(caught.value)


@given(st.text(), st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.lists(st.text())))
def test_values_never_make_a_path(name, value):
    written = _written("x", value)
    assert "/" not in written
    assert "\0" not in written
    assert (Path("a") / written).name == written


@settings(max_examples=30)
@given(st.lists(st.text(), min_size=2, max_size=5, unique=True))
def test_different_values_get_different_names(values):
    assert len({_written("x", value) for value in values}) == len(values)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Carry out a sweep that nobody disturbs."""
    folder = tmp_path_factory.mktemp("sweep")
    plan = {"strategies": ["none", "naive_uniform", {"strategy": "corrective"}], "seeds": [0, 1], "run": TINY}
    status = SweepStatus(Sweep.make(plan).runs)
    run_sweep(status, folder)
    return plan, folder, status


class InProcess(SerialEngine):
    """Takes the place of worker processes, which take seconds to start; the results are the same."""

    def __init__(self, stream, task, start, workers):
        super().__init__(stream, task, start)


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(scheduler, "ProcessesEngine", InProcess)


def test_runs_of_a_sweep_are_those_of_run(whole, tmp_path):
    _, folder, status = whole
    assert status.counts() == {"waiting": 0, "running": 0, "finished": 6, "failed": 0}
    assert len(list((folder / "first").iterdir())) == 2
    planned = next(each for each in status.runs if each.name == "corrective-1r-2-seed1")
    alone = planned.config.model_copy(update={"engine": planned.config.engine.model_copy(update={"name": "serial"})})
    run(alone, tmp_path / "alone")
    assert contents(tmp_path / "alone") == contents(folder / "runs" / planned.name)


def test_strategies_may_name_continual_methods_and_share_the_first_period(in_process, tmp_path):
    later = ["distillation", "der", "fedcurv", "fed_a_gem", "interpolation", "ewc", "l2"]
    named = [{"strategy": "naive_uniform", "continual": [name]} for name in later]
    average = {"distillation": {"teacher": "average"}}
    run_options = {"continual": {"options": {"ewc": {"strength": 3.0}}}}
    plan = {
        "strategies": ["none", *named, {"strategy": "none", "continual": average}],
        "run": TINY | run_options,
    }
    status = SweepStatus(Sweep.make(plan).runs)
    run_sweep(status, tmp_path / "sweep", workers=1)
    assert status.failures() == {}
    assert len(list((tmp_path / "sweep/first").iterdir())) == 1
    assert [planned.name for planned in status.runs][:2] == ["none-seed0", "naive_uniform-distillation-2-seed0"]
    strengths = [planned.config.continual.options for planned in status.runs if planned.config.continual.options]
    assert strengths == [{"ewc": {"strength": 3.0}}, average]
    for planned in status.runs:
        run(planned.config, tmp_path / planned.name)
        alone, shared = Run.load(tmp_path / planned.name), Run.load(tmp_path / "sweep/runs" / planned.name)
        for name in ("metrics", "bytes_up", "bytes_down"):
            assert alone.summary[name] == shared.summary[name], planned.name


def test_what_is_finished_is_not_done_again_and_more_may_be_added(whole, in_process, tmp_path):
    plan, folder, _ = whole
    logs = {path: path.read_text() for path in folder.glob("runs/*/run.log")}
    more = Sweep.make(plan | {"strategies": [*plan["strategies"], "polished"], "seeds": [0]})
    status = SweepStatus(more.runs)
    run_sweep(status, folder)
    assert status.counts()["finished"] == 4
    assert {path: path.read_text() for path in logs} == logs
    # its first period was taken from the others: nothing in its log is of period 0's training
    log = (folder / "runs/polished-2-seed0/run.log").read_text()
    assert ' round {"period": 1' in log
    assert ' round {"period": 0' not in log

    other = Sweep.make(plan | {"run": TINY | {"periods": 2}})
    with pytest.raises(InputError, match="another configuration"):
        run_sweep(SweepStatus(other.runs), folder)


def test_a_failed_run_is_shown_and_stops_nobody(in_process, tmp_path):
    plan = {
        "strategies": ["none", "naive_uniform"],
        "grid": {"federated.learning_rate": [1e30, 0.1]},
        "run": TINY | {"federated": {"rounds": 1, "max_grad_norm": 0}},
    }
    status = SweepStatus(Sweep.make(plan).runs)
    run_sweep(status, tmp_path)
    states = {name: run.state for name, run in status.by_name.items()}
    assert [state for name, state in states.items() if "1e-30" in name] == [FAILED] * 2
    assert [state for name, state in states.items() if "0.1" in name] == [FINISHED] * 2
    name, problem = next(iter(status.failures().items()))
    assert "lower federated.learning_rate" in problem
    assert problem in (tmp_path / "runs" / name / FAILURE).read_text()


@pytest.mark.usefixtures("in_process")
def test_the_first_period_is_there_for_others_though_the_run_that_made_it_was_killed_before_it_said_so(whole, tmp_path):
    plan, folder, _ = whole
    shutil.copytree(folder / "runs/none-seed0", tmp_path / "runs/none-seed0")
    key = Sweep.make(plan).runs[0].first
    for left in (tmp_path / "runs/none-seed0").iterdir():  # as a kill leaves it: measured, and no copy in first/
        if left.name not in ("config.toml", "versions.json"):
            left.unlink()
    shutil.copy(folder / "first" / f"{key}.safetensors", tmp_path / "runs/none-seed0/checkpoint.safetensors")
    status = SweepStatus(Sweep.make(plan | {"strategies": ["none", "naive_uniform"], "seeds": [0]}).runs)
    run_sweep(status, tmp_path, workers=1)
    assert status.counts()["finished"] == 2
    assert (tmp_path / "first" / f"{key}.safetensors").exists()
    for name in ("none-seed0", "naive_uniform-2-seed0"):
        assert ' round {"period": 0' not in (tmp_path / "runs" / name / "run.log").read_text()
        assert contents(tmp_path / "runs" / name) == contents(folder / "runs" / name)


def test_a_damaged_first_period_is_made_again(whole, in_process, tmp_path):
    plan, folder, _ = whole
    few = Sweep.make(plan | {"strategies": ["none"], "seeds": [0]})
    damaged = tmp_path / "first" / f"{few.runs[0].first}.safetensors"
    damaged.parent.mkdir()
    damaged.write_bytes(b"\0" * 100)
    status = SweepStatus(few.runs)
    run_sweep(status, tmp_path, workers=1)
    assert status.counts()["finished"] == 1
    assert contents(tmp_path / "runs/none-seed0") == contents(folder / "runs/none-seed0")
    assert damaged.stat().st_size > 100


def test_a_folder_has_one_sweep_at_a_time(whole):
    plan, folder, _ = whole
    with exclusive_lock(folder), pytest.raises(InputError, match="another process is at work"):
        run_sweep(SweepStatus(Sweep.make(plan).runs), folder)


def test_a_second_sweep_leaves_the_plan_of_the_first_alone(tmp_path, capsys):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/sweep.toml").write_text("# the first plan")
    (tmp_path / "other.toml").write_text('strategies = ["none"]\n[run]\npreset = "small"\n')
    command = ("sweep", tmp_path / "other.toml", "-o", tmp_path / "sweep")
    with exclusive_lock(tmp_path / "sweep"):
        code, _, err = call(capsys, *command)
    assert code == 2
    assert "another process is at work" in err
    assert (tmp_path / "sweep/sweep.toml").read_text() == "# the first plan"
    code, _, err = call(capsys, *command, "--resume")
    assert code == 2
    assert "--resume goes on with what the folder " in err


def test_budgets_count_though_the_run_has_a_share():
    plan = {
        "strategies": ["polished"],
        "budgets": [5, 20],
        "run": {"preset": "small", "replay": {"budget_fraction": 0.1}},
    }
    assert [planned.name for planned in Sweep.make(plan).runs] == ["polished-5-seed0", "polished-20-seed0"]


def test_dates_may_be_values():
    days = [date(2023, 11, 15), date(2023, 11, 16)]
    run = {"stream": {"source": "files", "options": {"path": "x.jsonl", "periods": {"start": days[0]}}}}
    sweep = Sweep.make({"strategies": ["none"], "run": run, "grid": {"stream.options.periods": [{"start": days[1]}]}})
    assert len({planned.first for planned in sweep.runs}) == len(sweep.runs) == 1
    assert sweep.runs[0].config.stream.options["periods"] == {"start": days[1]}


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"'.*file' can't be made: File exists"), exclusive_lock(tmp_path / "file"):
        pass


def test_another_plan_is_refused_and_the_old_one_stays(whole, tmp_path, capsys):
    _, folder, _ = whole
    (tmp_path / "sweep").mkdir()
    shutil.copytree(folder / "runs/none-seed0", tmp_path / "sweep/runs/none-seed0")
    (tmp_path / "sweep/sweep.toml").write_text("# the old plan")
    (tmp_path / "other.toml").write_text('strategies = ["none"]\n[run]\npreset = "small"\n')
    code, _, err = call(capsys, "sweep", tmp_path / "other.toml", "-o", tmp_path / "sweep")
    assert code == 2
    assert "another configuration" in err
    assert (tmp_path / "sweep/sweep.toml").read_text() == "# the old plan"


def test_workers_that_do_not_start_fail_their_run_and_no_other(tmp_path, monkeypatch):
    started = []

    class Second(InProcess):
        """Does not start for the second sample of clients, as when memory is short."""

        def __init__(self, *given):
            started.append(given)
            if len(started) == 2:
                raise MemoryError
            super().__init__(*given)

    monkeypatch.setattr(scheduler, "ProcessesEngine", Second)
    status = SweepStatus(Sweep.make({"strategies": ["none"], "seeds": [0, 1, 2], "run": TINY}).runs)
    run_sweep(status, tmp_path, workers=1)
    assert [run.state for run in status.by_name.values()] == [FINISHED, FAILED, FINISHED]
    assert status.failures() == {"none-seed1": "MemoryError"}


def test_the_time_left_follows_the_pace():
    now = [0.0]
    runs = Sweep.make({"strategies": ["none", "polished"], "run": TINY}).runs
    status = SweepStatus(runs, clock=lambda: now[0])
    assert status.seconds_left() is None
    status.set(runs[0], RUNNING)
    status.by_name[runs[0].name].update(Event("begin", 0, 0, {"rounds": [2, 1, 1]}))
    now[0] = 30.0
    status.by_name[runs[0].name].update(Event("round", 0, 2, {}))
    assert status.seconds_left() == pytest.approx(60)  # half a run in 30 seconds; the other has this half from here
    status.by_name[runs[1].name].update(Event("begin", 1, 0, {"rounds": [2, 1, 1]}))
    assert status.seconds_left() == pytest.approx(60)  # having the first period from elsewhere is no progress
    status.by_name[runs[1].name].update(Event("begin", 2, 0, {"rounds": [2, 1, 1]}))
    assert status.seconds_left() == pytest.approx(45)  # nor is what was done before it was stopped
    status.set(runs[0], FINISHED)
    status.set(runs[1], FAILED)
    assert status.seconds_left() == 0


def test_killed_twice_and_resumed_it_gives_the_same(whole, tmp_path):
    _, folder, _ = whole
    text = 'strategies = ["none", "naive_uniform", { strategy = "corrective" }]\nseeds = [1]\n[run]\n'
    file = tmp_path / "sweep.toml"
    file.write_text(text + "".join(f"{key} = {_toml(value)}\n" for key, value in TINY.items()))
    command = [sys.executable, "-m", "coreplay", "sweep", str(file), "-o", str(tmp_path / "sweep"), "--json"]
    chance = random.Random(0)
    for _ in range(2):
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        begun = set((tmp_path / "sweep").glob("runs/*/run.log"))
        while process.poll() is None and set((tmp_path / "sweep").glob("runs/*/run.log")) == begun:
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 0.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["runs"]["finished"] == 3
    for path in (folder / "runs").iterdir():
        if path.name.endswith("seed1"):
            assert contents(tmp_path / "sweep/runs" / path.name) == contents(path), path.name


def test_ctrl_c_stops_and_says_how_to_go_on(tmp_path):
    file = tmp_path / "sweep.toml"
    long = {**TINY, "federated": {"rounds": 500}}
    file.write_text('strategies = ["none"]\n[run]\n' + "".join(f"{k} = {_toml(v)}\n" for k, v in long.items()))
    heeds = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also where tests run behind "&"
    )
    script = heeds + "from coreplay.cli import main; main()"
    command = [sys.executable, "-c", script, "sweep", str(file), "-o", str(tmp_path / "sweep")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and not list((tmp_path / "sweep").glob("runs/*/run.log")):
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # `timeout -s INT` sends it twice
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"coreplay sweep --resume {tmp_path / 'sweep'}" in said.splitlines()[-1], "no warning comes after it"
    assert "Traceback" not in said


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)
