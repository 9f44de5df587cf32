"""`coreplay runs`, and what a run leaves in its folder."""

import json
import shutil

from coreplay.runtime import Config, RunFolder, run
from tests.cli.common import TINY, call


def test_runs_lists_what_there_is(place, tmp_path, capsys):
    (row,) = json.loads(call(capsys, "runs", place, "--json")[1])
    summary = json.loads((place / "done/summary.json").read_text())
    assert (row["name"], row["state"], row["strategy"], row["budget"]) == ("done", "finished", "corrective", 3)
    assert row["figure"] == summary["metrics"]["accuracy"][-1]
    assert "| done | corrective | 3 | 0 | finished | accuracy" in call(capsys, "runs", place)[1]
    assert "no runs below" in call(capsys, "runs", tmp_path)[1]
    assert call(capsys, "runs", tmp_path / "absent")[0] == 2


def test_strategies_that_choose_nothing_have_no_budget(tmp_path, capsys):
    config = Config.make(TINY, {"replay.strategy": "none", "federated.rounds": 1, "engine.name": "serial"})
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
    assert r"title? x \| fake \| none" in out, "a name stays in its column"
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
