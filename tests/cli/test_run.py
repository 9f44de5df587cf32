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

from coreplay.errors import InputError
from coreplay.runtime import Config, RunFolder, WorkerError, run
from tests.cli.common import call

SLOW = ("--set", "federated.rounds=2000", "--set", "periods=1")  # long enough to be stopped on the way


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
    assert "resuming at period 1" in err
    assert (folder / "metrics.jsonl").read_bytes() == (place / "done" / "metrics.jsonl").read_bytes()
    metrics = json.loads((place / "done" / "summary.json").read_text())["metrics"]
    assert json.loads(out)["metrics"] == metrics
    log = (folder / "run.log").read_text()
    assert log.count(" begin ") == 2
    assert log.count(" end ") == 1


def shared_memory(process):
    """Return the files of shared memory that a process has open."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return {Path(place) for place in re.findall(r"/dev/shm/psm_\w+", maps)}


def test_ctrl_c_says_how_to_go_on_and_leaves_nobody(place, tmp_path, capsys):
    folder = tmp_path / "stopped"
    process = start(place / "run.toml", "-o", folder, *SLOW, "--set", "engine.workers=2")
    wait_for(folder, process, 1)
    code, _, err = call(capsys, "run", "--resume", folder)
    assert code == 2
    assert "another process is carrying out the run" in err
    assert json.loads(call(capsys, "runs", tmp_path, "--json")[1])[0]["state"] == "running"
    found = shared_memory(process)
    assert found
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        err.splitlines()[-1]
        == f"interrupted: results so far are in {folder}; continue with: coreplay run --resume {folder}"
    )
    assert "Traceback" not in err
    assert out == ""
    assert nobody_left(process.pid)
    assert not any(file.exists() for file in found)
    (listed,) = json.loads(call(capsys, "runs", tmp_path, "--json")[1])
    assert (listed["state"], listed["period"]) == ("stopped", 0)
    assert listed["round"] >= 1
    assert "stopped, period 1, round" in call(capsys, "runs", tmp_path)[1]


@pytest.mark.parametrize(("moment", "times"), [("starting", 1), ("starting", 2), ("training", 2)])  # training, 1: above
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
    code, _, err = call(capsys, "run", place / "run.toml", "-o", tmp_path / "full", "--set", "engine.name=serial")
    assert code == 1
    assert "the disk is full" in err.splitlines()[-1]
    assert f"continue with: coreplay run --resume {tmp_path / 'full'}" in err
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

    monkeypatch.setattr("coreplay.runtime.run", stop)
    found, out, err = call(capsys, "run", place / "run.toml", "-o", tmp_path / "new")
    assert found == code
    assert message in err
    assert f"coreplay run --resume {tmp_path / 'new'}" in err
    assert out == ""
    begun = False
    if not isinstance(error, OSError):
        assert "run the same command again" in call(capsys, "run", place / "run.toml", "-o", tmp_path / "never")[2]


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
        "engine": {"name": "serial"},
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
    assert "# Number of samples that a client may keep." in out
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
        (["--resume"], "--resume needs a folder: coreplay run --resume"),
        (["--resume", "nothing"], "holds no run"),
        (["run.toml", "-o", "done"], "holds a run already"),
        (["run.toml", "--resume", "-o", "done"], "leave out 'run.toml', or --resume"),
        (["--preset", "small", "--resume", "-o", "done"], "--preset is for a new run"),
        (["--resume", "done", "--set", "replay.budget=4"], "begun with another 'replay'"),
        (["--resume", "done", "--set", "seed=4"], "begun with another 'seed'"),
        (["run.toml", "-o", "."], "exists and is no run"),
        (["--resume", "done", "-o", "other"], "goes on with what the folder 'other' holds: leave out 'done'"),
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
