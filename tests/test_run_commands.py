"""`coreplay run` and `runs`: what a user gets, also when things go wrong."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coreplay.cli import main
from coreplay.errors import InputError
from coreplay.runtime import Config, RunFolder, WorkerError, run

TINY = {  # images: each process would spend five seconds on loading transformers
    "stream": {"source": "digits", "options": {"num_clients": 5, "num_periods": 2}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {"rounds": 3},
    "replay": {"strategy": "corrective", "budget": 3, "coordination_rounds": 1},
    "gradients": {"sketch_size": 64},
    "engine": {"workers": 1, "checkpoint_seconds": 0},
}
SLOW = ("--set", "federated.rounds=2000", "--set", "periods=1")  # long enough to be stopped on the way


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make a folder with run.toml and the finished run `done`."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run.toml").write_text(Config.make(TINY).toml())
    run(Config.make(TINY), folder / "done")
    return folder


def call(capsys, *arguments):
    """Call the command line in this process; return the exit code, standard output and standard error."""
    before = sys.argv
    sys.argv = ["coreplay", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = before
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err


def start(*arguments, first=""):
    """Start the command line in a process group of its own, as a terminal does; with some code before it."""
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # else ignored behind "&"
    program = heeds + first + "from coreplay.cli import main; main()"
    command = [sys.executable, "-c", program, "run", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(folder, process, rounds):
    """Wait until a run has checkpoints of so many rounds."""
    file = folder / "rounds.jsonl"
    for _ in range(6000):
        if file.exists() and len(file.read_text().splitlines()) >= rounds:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    raise AssertionError("the run does not get on")


def nobody_left(group):
    for _ in range(500):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


KILLED = """
import os, signal
import coreplay.runtime.run_dir as module
write, left = module.save_file, [{n}]
def save(*arguments, **options):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    write(*arguments, **options)
module.save_file = save
"""


@pytest.mark.parametrize("n", [3, 5], ids=["between rounds", "with new buffers and the old checkpoint"])
def test_killed_and_resumed_is_the_same_to_the_byte(place, tmp_path, capsys, n):
    folder = tmp_path / "killed"
    process = start(place / "run.toml", "-o", folder, "--set", "engine.workers=2", first=KILLED.format(n=n))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert nobody_left(process.pid)
    code, out, err = call(capsys, "run", "--resume", folder, "--set", "engine.workers=1", "--json")
    assert code == 0, err
    assert "goes on in period 1" in err
    assert (folder / "metrics.jsonl").read_bytes() == (place / "done" / "metrics.jsonl").read_bytes()
    metrics = json.loads((place / "done" / "summary.json").read_text())["metrics"]
    assert json.loads(out)["metrics"] == metrics
    log = (folder / "run.log").read_text()
    assert log.count(" begin ") == 2
    assert log.count(" end ") == 1


def test_ctrl_c_says_how_to_go_on_and_leaves_nobody(place, tmp_path, capsys):
    folder = tmp_path / "stopped"
    process = start(place / "run.toml", "-o", folder, *SLOW, "--set", "engine.workers=2")
    wait_for(folder, process, 1)
    code, _, err = call(capsys, "run", "--resume", folder)
    assert code == 2
    assert "another process is carrying out the run" in err
    assert json.loads(call(capsys, "runs", tmp_path, "--json")[1])[0]["state"] == "running"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        err.splitlines()[-1] == f"interrupted: what is done is in {folder}; go on with: coreplay run --resume {folder}"
    )
    assert "Traceback" not in err
    assert out == ""
    assert nobody_left(process.pid)
    (listed,) = json.loads(call(capsys, "runs", tmp_path, "--json")[1])
    assert (listed["state"], listed["period"]) == ("stopped", 0)
    assert listed["round"] >= 1
    assert "stopped, period 1, round" in call(capsys, "runs", tmp_path)[1]


def shared_memory(process):
    """Return the files of shared memory that a process has open."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return {Path(place) for place in re.findall(r"/dev/shm/psm_\w+", maps)}


@pytest.mark.parametrize("moment", ["starting", "training"])
@pytest.mark.parametrize("times", [1, 2], ids=["ctrl-C", "timeout"])
def test_an_interrupt_leaves_no_shared_memory_and_no_warning(place, tmp_path, moment, times):
    """`timeout -s INT` sends the signal twice: to the process, and to its group."""
    folder = tmp_path / "stopped"
    process = start(place / "run.toml", "-o", folder, *SLOW, "--set", "engine.workers=2")
    if moment == "training":
        wait_for(folder, process, 1)
    while not (found := shared_memory(process)):
        time.sleep(0.002)
    if times == 2:
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("interrupted: ")
    assert "Traceback" not in err
    assert nobody_left(process.pid)
    assert not any(file.exists() for file in found)


def test_a_full_disk_ends_with_a_message_and_the_run_goes_on(place, tmp_path, capsys, monkeypatch):
    from safetensors import SafetensorError

    import coreplay.runtime.run_dir as module

    write, calls = module.save_file, []

    def full(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        return write(*arguments, **options)

    monkeypatch.setattr(module, "save_file", full)
    code, _, err = call(capsys, "run", place / "run.toml", "-o", tmp_path / "full")
    assert code == 1
    assert "the disk is full" in err.splitlines()[-1]
    assert f"go on with: coreplay run --resume {tmp_path / 'full'}" in err
    assert "Traceback" not in err
    assert not list((tmp_path / "full").glob(".writing-*"))
    assert call(capsys, "run", "--resume", "-o", tmp_path / "full")[0] == 0
    assert (tmp_path / "full/metrics.jsonl").read_bytes() == (place / "done/metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (WorkerError("client 'ann' failed twice: out of luck"), 1, "client 'ann' failed twice"),
        (OSError(28, "No space left on device"), 1, "the disk is full"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_stops_a_run_says_how_to_go_on(place, tmp_path, capsys, monkeypatch, error, code, message):
    begun = True

    def stop(config, folder, **options):
        if begun:
            RunFolder.create(folder, config)
        raise error

    monkeypatch.setattr("coreplay.engines.run", stop)
    found, out, err = call(capsys, "run", place / "run.toml", "-o", tmp_path / "new")
    assert found == code
    assert message in err
    assert f"coreplay run --resume {tmp_path / 'new'}" in err
    assert out == ""
    begun = False
    if not isinstance(error, OSError):
        assert "start it again" in call(capsys, "run", place / "run.toml", "-o", tmp_path / "never")[2]


def test_a_finished_run_is_shown_and_not_done_again(place, capsys):
    before = (place / "done/run.log").read_text()
    code, out, err = call(capsys, "run", "--resume", place / "done")
    assert code == 0
    assert "finished already" in err
    assert "| 2 | " in out
    assert (place / "done/run.log").read_text() == before


def test_a_finished_run_whose_data_has_grown_says_so(tmp_path, capsys):
    def write(periods):
        rows = [
            {"client_id": client, "text": f"word{k} of {client}", "period": period, "split": split}
            for period in range(periods)
            for client in ("ann", "bo")
            for split, count in (("train", 4), ("test", 2))
            for k in range(count)
        ]
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(2)
    sizes = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "intermediate_size": 8, "vocabulary_size": 60}
    config = {
        "stream": {"source": "files", "options": {"path": str(tmp_path / "data.jsonl")}},
        "task": {"name": "masked_lm", "options": sizes},
        "federated": {"rounds": 1},
        "replay": {"strategy": "none"},
        "engine": {"workers": 1},
    }
    run(Config.make(config), tmp_path / "run")
    assert call(capsys, "run", "--resume", tmp_path / "run")[0] == 0
    write(3)
    code, out, err = call(capsys, "run", "--resume", tmp_path / "run")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "periods 2 to 3 (+1), training samples 16 to 24 (+8), test samples 8 to 12 (+4)" in err
    assert "start a new run" in err
    with pytest.raises(InputError, match="has changed since it began"):
        run(Config.make(config), tmp_path / "run", resume=True)
    (tmp_path / "data.jsonl").unlink()
    assert "| 2 | " in call(capsys, "run", "--resume", tmp_path / "run")[1], "without the data there is still the table"


def test_config_is_printed_as_it_can_be_read(place, tmp_path, capsys):
    code, out, _ = call(capsys, "run", "--preset", "small", "--set", "replay.budget=7", "--print-config")
    assert code == 0
    (tmp_path / "printed.toml").write_text(out)
    assert Config.load(tmp_path / "printed.toml") == Config.make({"preset": "small"}, {"replay.budget": 7})
    assert "# How many samples a client may keep." in out
    changed = call(
        capsys, "run", place / "run.toml", "--set", 'replay.client_budgets={"client1": 2}', "--print-config"
    )[1]
    assert 'client_budgets = { "client1" = 2 }' in changed


WRONG = {
    "unknown key": (["--set", "replay.bugdet=5"], "did you mean 'budget'?"),
    "unknown section": (["--set", "repaly.budget=5"], "did you mean 'replay'?"),
    "unknown option": (["--set", "stream.options.num_clints=5"], "did you mean 'num_clients'?"),
    "wrong type": (["--set", "replay.budget=many"], "replay.budget = 'many'"),
    "out of range": (["--set", "federated.rounds=0"], "federated.rounds = 0"),
    "unknown strategy": (["--set", "replay.strategy=correctiv"], "did you mean 'corrective'?"),
    "unknown algorithm": (["--set", "federated.algorithm=fedavgg"], "did you mean 'fedavg'?"),
    "unknown tracker": (["--set", 'trackers=["tensorbord"]'], "did you mean 'tensorboard'?"),
    "no value": (["--set", "replay.budget"], "--set must be name=value"),
    "no test data": (["--set", "stream.options.test=0"], "no test data"),
    "more periods than there are": (["--set", "periods=5"], "the stream has 2"),
    "no such client": (["--set", 'replay.client_budgets={"ann": 3}'], "client 'ann'"),
    "no such baseline": (["--set", "baseline=nowhere"], "no finished run"),
    "file and preset": (["--preset", "small"], "not both"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_clear_line_before_any_work(place, tmp_path, capsys, case):
    arguments, message = WRONG[case]
    code, out, err = call(capsys, "run", place / "run.toml", "-o", tmp_path / "new", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.toml"], "config 'absent.toml' does not exist"),
        (["--preset", "smal"], "did you mean 'small'?"),
        ([], "name a configuration file"),
        (["--resume"], "needs the folder of a run"),
        (["--resume", "nothing"], "holds no run"),
        (["run.toml", "-o", "done"], "holds a run already"),
        (["run.toml", "--resume", "-o", "done", "--set", "replay.budget=4"], "begun with another 'replay'"),
        (["--resume", "done", "--set", "seed=4"], "begun with another 'seed'"),
        (["run.toml", "-o", "."], "exists and is no run"),
        (["--resume", "done", "-o", "other"], "two folders to go on with"),
    ],
)
def test_wrong_files_and_folders(place, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(place)
    code, out, err = call(capsys, "run", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "buffers.sqlite", "config.toml"])
def test_a_damaged_run_is_noticed_before_any_work(place, tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr("coreplay.runtime.api.prepare", lambda config: pytest.fail("work has begun"))
    folder = tmp_path / "damaged"
    shutil.copytree(place / "done", folder)
    (folder / "summary.json").unlink()
    (folder / name).write_bytes(b"\x00garbage\xff" * 500)
    code, _, err = call(capsys, "run", "--resume", folder)
    assert code == 2
    assert name in err
    assert len(err.splitlines()) == 1
    if name != "buffers.sqlite":
        code, out, _ = call(capsys, "runs", tmp_path)
        assert code == 0
        assert "damaged" in out


def test_runs_lists_what_there_is(place, tmp_path, capsys):
    (row,) = json.loads(call(capsys, "runs", place, "--json")[1])
    summary = json.loads((place / "done/summary.json").read_text())
    assert (row["name"], row["state"], row["strategy"], row["budget"]) == ("done", "finished", "corrective", 3)
    assert row["figure"] == summary["metrics"]["accuracy"][-1]
    assert "| done | corrective | 3 | 0 | finished | accuracy" in call(capsys, "runs", place)[1]
    assert "no runs below" in call(capsys, "runs", tmp_path)[1]
    assert call(capsys, "runs", tmp_path / "absent")[0] == 2


def test_strategies_that_choose_nothing_have_no_budget(tmp_path, capsys):
    config = Config.make(TINY, {"replay.strategy": "none", "federated.rounds": 1})
    summary = run(config, tmp_path / "none").summary
    assert summary["budget"] is None
    (row,) = json.loads(call(capsys, "runs", tmp_path, "--json")[1])
    assert row["budget"] is None
    assert "| none | none |  | 0 | finished |" in call(capsys, "runs", tmp_path)[1]
    shown = call(capsys, "run", "--resume", tmp_path / "none")[1]
    assert shown.startswith("Strategy none, seed 0: accuracy")


def test_figures_of_a_column_have_the_same_number_of_decimals(place, tmp_path, capsys):
    shutil.copytree(place / "done", tmp_path / "a")
    shutil.copytree(place / "done", tmp_path / "b")
    for name, figures in (("a", [0.5, 0.25]), ("b", [0.0123456, 0.75])):
        file = tmp_path / name / "summary.json"
        summary = json.loads(file.read_text())
        summary["metrics"] |= {"accuracy": figures}
        file.write_text(json.dumps(summary))
    shown = call(capsys, "runs", tmp_path)[1]
    assert "accuracy 0.2500" in shown
    assert "accuracy 0.7500" in shown
    shown = call(capsys, "run", "--resume", tmp_path / "b")[1]
    assert "| 1 | 0.0123 |" in shown
    assert "| 2 | 0.7500 |" in shown


def test_the_log_has_times(place):
    log = (place / "done/run.log").read_text()
    assert all(line[:2] == "20" and line[10] == "T" for line in log.splitlines())


def test_a_run_with_a_strategy_that_only_its_program_knows_is_shown_and_not_gone_on_with(place, capsys, tmp_path):
    shutil.copytree(place / "done", tmp_path / "own")
    file = tmp_path / "own/config.toml"
    file.write_text(file.read_text().replace('strategy = "corrective"', 'strategy = "own_one"'))
    code, out, _ = call(capsys, "runs", tmp_path, "--json")
    assert (code, [(one["strategy"], one["state"]) for one in json.loads(out)]) == (0, [("own_one", "finished")])
    code, _, err = call(capsys, "report", tmp_path, "-o", tmp_path / "report")
    assert code == 0, err
    assert "own_one" in (tmp_path / "report/results.md").read_text().replace("\\", "")
    code, _, err = call(capsys, "run", "--resume", tmp_path / "own")
    assert (code, "unknown strategy 'own_one'" in err) == (2, True)


def test_names_and_reasons_with_escapes_are_listed_without_them(tmp_path, place, capsys):
    odd = "\x1b]0;title\x07 x\n| fake | none | 5 | 0 | finished | | |"
    shutil.copytree(place / "done", tmp_path / odd)
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed/failure.txt").write_text("no \x1b]52;c;aGk=\x07 memory\n")
    code, out, err = call(capsys, "runs", tmp_path)
    assert code == 0
    assert not set("\x1b\x07") & set(out + err)
    assert len(out.strip().splitlines()) == 4  # a head, its line and two runs
    assert "no ?]52;c;aGk=? memory" in err
    code, out, err = call(capsys, "run", "--resume", tmp_path / "x\x1b]0;title\x07")
    assert code == 2
    assert "\x1b" not in err


def test_what_holds_samples_or_models_is_for_its_user_alone(tmp_path, modes):
    private = ("buffers.sqlite", "checkpoint.safetensors", "scratch/")
    seen = {}

    def watch(event):
        seen.update({name: mode for name, mode in modes(tmp_path).items() if any(part in name for part in private)})
        seen.update({name: mode for name, mode in modes(tmp_path).items() if name.endswith("scratch")})

    half = tmp_path / "run/.writing-0123456789abcdef.json"  # as a kill leaves it
    half.parent.mkdir()
    half.touch()
    run(Config.make(TINY), tmp_path / "run", observer=watch)
    assert seen.pop("run/scratch") == 0o700
    assert {"run/buffers.sqlite", "run/buffers.sqlite-wal", "run/checkpoint.safetensors"} < set(seen)
    assert any(name.startswith("run/scratch/") for name in seen)
    assert set(seen.values()) == {0o600}
    found = modes(tmp_path)
    assert {found[f"run/{name}"] for name in ("buffers.sqlite", "checkpoint.safetensors")} == {0o600}
    assert found["run/metrics.jsonl"] == 0o644
    assert not half.exists()
    assert modes(RunFolder.create(tmp_path / "new/deep", Config.make(TINY)).path.parent)["deep"] == 0o700
