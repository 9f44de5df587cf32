"""The report as a whole: which runs, which numbers, which files."""

import csv
import json
import shutil
import sys

import numpy as np
import pytest

from coreplay.data import FederatedStream, source
from coreplay.errors import InputError
from coreplay.report.api import FILES, TABLES, markdown, write
from coreplay.report.charts import records
from coreplay.report.compare import group_runs
from coreplay.report.figures import FIGURES, convergence, trade_off
from coreplay.report.load import load_runs
from coreplay.runtime import Config
from coreplay.runtime.run_index import list_runs
from tests.report.making import SEEDS

pytestmark = pytest.mark.xdist_group("report")  # which share runs and a report


def summary(runs, name, seed):
    return json.loads((runs / f"{name}-seed{seed}" / "summary.json").read_text())["metrics"]


def table(report, name):
    with (report.folder / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_finished_runs_are_found_at_any_depth_and_others_named(runs, written):
    report, said = written
    assert len(report.sections) == 1
    assert len(report.sections[0].group.runs) == 6 * len(SEEDS)
    assert any("stopped" in text and "not finished" in text for text in report.left_out)
    assert any("damaged" in text for text in report.left_out)
    assert len(report.left_out) == 2
    assert sum(text.startswith("warning: left out") for text in said) == 2


def test_nothing_finished_is_an_error(tmp_path, runs):
    with pytest.raises(InputError, match="there is no finished run below"):
        load_runs([tmp_path])
    with pytest.raises(InputError, match="not finished"):
        load_runs([runs / "deep"])
    with pytest.raises(InputError, match="there is no folder"):
        load_runs([tmp_path / "absent"])


def test_a_run_named_twice_counts_once(runs):
    assert len(load_runs([runs, runs / "none-seed0", runs / "../" / runs.name])[0]) == 6 * len(SEEDS)


def test_results_are_the_means_of_the_summaries(runs, written):
    rows = {(row["strategy"], row["budget"]): row for row in table(written[0], "results")}
    assert set(rows) == {
        *(("none", "any"), ("full_history", "any")),
        *((name, budget) for name in ("naive_uniform", "corrective, 2 rounds") for budget in ("2", "4")),
    }
    finals = [summary(runs, "corrective-4", seed)["perplexity"][-1] for seed in SEEDS]
    before = [summary(runs, "none", seed)["perplexity"][-1] for seed in SEEDS]
    lost = [summary(runs, "corrective-4", seed)["forgetting"][-1] for seed in SEEDS]
    row = rows["corrective, 2 rounds", "4"]
    changes = [a / b - 1 for a, b in zip(finals, before, strict=True)]
    assert float(row["perplexity"]) == pytest.approx(np.mean(finals))
    assert float(row["perplexity_sd"]) == pytest.approx(np.std(finals, ddof=1))
    assert float(row["relative_change"]) == pytest.approx(np.mean(changes))
    assert float(row["relative_change_sd"]) == pytest.approx(np.std(changes, ddof=1))
    assert float(row["forgetting"]) == pytest.approx(np.mean(lost))
    bars = {(r["series"], r["budget"]): r for r in table(written[0], "relative-change")}
    assert float(bars["corrective, 2 rounds", "4"]["change of perplexity"]) == pytest.approx(np.mean(changes))
    assert bars["full_history", "2"]["each"] == bars["full_history", "4"]["each"]
    assert "none" not in {series for series, _ in bars}


def test_lines_by_test_period_are_relative_to_the_same_seed(runs, written):
    def values(name, seed):
        rows = [json.loads(line) for line in (runs / f"{name}-seed{seed}" / "metrics.jsonl").read_text().splitlines()]
        return [row["perplexity"] for row in rows if row["period"] == 2]

    ratios = []
    for seed in SEEDS:
        whole = summary(runs, "none", seed)["perplexity"][-1]
        ratios.append(values("naive_uniform-2", seed)[1] / whole - 1)
    (row,) = (
        row
        for row in table(written[0], "test-periods")
        if (row["series"], row["budget"], row["test period"]) == ("naive_uniform", "2", "2")
        and "paper" in row["relative to"]
    )
    assert float(row["change of perplexity"]) == pytest.approx(np.mean(ratios))


def test_every_figure_and_table_is_there_as_files(written):
    report, _ = written
    names = {path.name for path in report.folder.iterdir()}
    assert names == {path.name for path in report.files}
    assert names <= FILES
    expected = {f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "svg", "csv")}
    assert names == {"index.html"} | expected | {f"{name}.{suffix}" for name in TABLES for suffix in ("csv", "md")}
    assert all(path.stat().st_size > 100 for path in report.files)
    group = report.sections[0].group
    assert [figure.name for make in FIGURES.values() if (figure := make(group))] == list(FIGURES)
    assert {figure.name for figure in report.sections[0].figures} == set(FIGURES)
    json.dumps(report.to_json(), allow_nan=False)


def test_an_old_report_is_replaced_and_other_folders_are_not_touched(runs, tmp_path, undrawn):
    (tmp_path / "report/group-1").mkdir(parents=True)
    (tmp_path / "report/group-1/results.md").write_text("old")
    report = write([runs / "none-seed0", runs / "corrective-2-seed0"], tmp_path / "report")
    assert not (tmp_path / "report/group-1/results.md").exists()
    assert any("One seed" in note for note in report.sections[0].notes)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        write([runs], tmp_path / "mine")


def test_without_no_replay_relative_figures_are_left_out_with_a_note(runs):
    (group,) = group_runs(load_runs([runs / "naive_uniform-2-seed0", runs / "corrective-2-seed0"])[0])
    names = [figure.name for make in FIGURES.values() if (figure := make(group))]
    assert "relative-change" not in names
    assert "test-periods" not in names
    assert {"forgetting", "trade-off", "matrix"} <= set(names)
    assert "perplexity" in records(trade_off(group))[0]


def test_groups_are_named_by_what_differs(runs, tmp_path):
    for seed in (0, 1):
        shutil.copytree(runs / f"none-seed{seed}", tmp_path / f"a{seed}")
        shutil.copytree(runs / f"none-seed{seed}", tmp_path / f"b{seed}")
        config = Config.load(tmp_path / f"b{seed}/config.toml", {"federated.rounds": 7, "stream.options.samples": 11})
        (tmp_path / f"b{seed}/config.toml").write_text(config.toml())
    groups = group_runs(load_runs([tmp_path])[0])
    assert [group.name for group in groups] == [
        "stream.options.samples = 10, federated.rounds = 1",
        "stream.options.samples = 11, federated.rounds = 7",
    ]
    assert [len(group.runs) for group in groups] == [2, 2]
    text = markdown([tmp_path])
    assert text.count("| none | any |") == 2
    assert "**stream.options.samples = 11, federated.rounds = 7**" in text


def test_many_differences_are_named_by_what_says_most(runs, tmp_path):
    for name, change in (
        ("a", {}),
        ("b", {"federated.rounds": 7, "federated.epochs": 2, "federated.max_grad_norm": 2.0}),
    ):
        shutil.copytree(runs / "none-seed0", tmp_path / name)
        path = tmp_path / name / "config.toml"
        path.write_text(Config.load(path, change | {"task.options.max_length": 16 + len(change)}).toml())
    (_, other) = group_runs(load_runs([tmp_path])[0])
    assert other.name == "task.options.max_length = 19, federated.epochs = 2, federated.max_grad_norm = 2.0, and 1 more"


def test_a_failed_run_is_left_out_with_its_reason(runs, tmp_path):
    shutil.copytree(runs / "none-seed0", tmp_path / "a")
    shutil.copytree(runs / "none-seed0", tmp_path / "b")
    (tmp_path / "b/summary.json").unlink()
    for name in ("b", "c"):  # the second failed before it had a configuration
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "failure.txt").write_text("InputError: no such file\nand more\n")
    (tmp_path / "a/failure.txt").write_text("InputError: mended since\n")  # finished by hand after it had failed
    found, left = load_runs([tmp_path])
    assert len(found) == 1
    assert [text.partition(" failed: ")[2] for text in left] == ["InputError: no such file"] * 2
    states = {listed.name: (listed.state, listed.problem) for listed in list_runs(tmp_path)}
    failed = ("failed", "InputError: no such file")
    assert states == {"a": ("finished", ""), "b": failed, "c": failed}


def test_runs_of_a_plan_that_have_not_started_are_said(runs, tmp_path):
    shutil.copytree(runs / "none-seed0", tmp_path / "runs/none-seed0")
    (tmp_path / "sweep.toml").write_text('strategies = ["none", "polished"]\nbudgets = [2, 3]\nrun = { seed = 1 }\n')
    (text,) = load_runs([tmp_path])[1]
    assert "2 of 3 runs planned" in text
    assert text.endswith("have not started: polished-2-seed0, polished-3-seed0")
    assert load_runs([tmp_path / "runs"])[1] == []
    (tmp_path / "sweep.toml").write_text('strategies = ["polished"]\n')  # no plan of what lies beside it
    assert load_runs([tmp_path])[1] == []
    (tmp_path / "sweep.toml").write_text("strategies = 3\n")
    assert "the plan of a sweep cannot be read" in load_runs([tmp_path])[1][0]


def test_convergence_shows_every_method_that_has_rounds(runs, tmp_path):
    rows = [{"period": 0, "round": r, "relaxed": 8.0 / (r + 1), "integer": None} for r in range(3)]
    paths = []
    for name, rounds in (("a", 3), ("b", 1)):
        paths.append(tmp_path / name)
        shutil.copytree(runs / "corrective-2-seed0", paths[-1])
        config = Config.load(
            paths[-1] / "config.toml", {"replay.strategy": "alternating", "replay.coordination_rounds": rounds}
        )
        (paths[-1] / "config.toml").write_text(config.toml())
        (paths[-1] / "coordination.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:rounds]))
    (group,) = group_runs(load_runs(paths)[0])
    (lines,) = convergence(group).panels[0].chart.series
    assert lines.label == "alternating, 3 rounds: relaxed"
    assert [spread.mean for spread in lines.y] == pytest.approx([1, 1 / 2, 1 / 3])


@source("loud")
def loud() -> FederatedStream:
    """Refuse to be loaded."""
    raise InputError("the loud source was loaded")


def test_a_report_loads_no_stream(runs, tmp_path, undrawn):
    shutil.copytree(runs / "corrective-2-seed0", tmp_path / "runs/nice")
    place = tmp_path / "runs/nice/config.toml"
    stream = {"stream": {"source": "loud", "options": {}}}
    place.write_text(Config.make(Config.load(place).model_dump() | stream).toml())
    report = write([tmp_path / "runs"], tmp_path / "report")
    assert report.sections[0].group.setting["stream.source"] == "loud"


def test_the_same_strategy_budget_and_seed_with_other_numbers_is_said(runs, tmp_path):
    shutil.copytree(runs / "none-seed0", tmp_path / "a")
    shutil.copytree(runs / "none-seed0", tmp_path / "b")
    assert load_runs([tmp_path])[1] == []
    text = (tmp_path / "b/summary.json").read_text()
    figure = json.loads(text)["metrics"]["perplexity"][-1]
    (tmp_path / "b/summary.json").write_text(text.replace(str(figure), str(figure + 1)))
    found, left = load_runs([tmp_path])
    assert len(found) == 1
    assert "but different numbers" in left[0]


def test_the_command(runs, tmp_path, capsys, monkeypatch, undrawn):
    from coreplay.cli import main

    monkeypatch.chdir(tmp_path)
    arguments = [str(runs / "none-seed0"), str(runs / "naive_uniform-2-seed0"), "--json"]
    monkeypatch.setattr(sys, "argv", ["coreplay", "report", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert not end.value.code
    result = json.loads(shown.out)
    assert result["page"] == "report/index.html"
    assert result["groups"][0]["results"][1]["strategy"] == "naive_uniform"
    assert "drawing" in shown.err
    assert (tmp_path / "report/index.html").exists()
    monkeypatch.setattr(sys, "argv", ["coreplay", "report", str(tmp_path), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "no finished run" in capsys.readouterr().err
