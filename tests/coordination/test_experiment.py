"""The experiment on generated clients, its bound, its report and its command."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from coreplay import coordinate
from coreplay.cli.app import app
from coreplay.errors import InputError
from coreplay.experiments.coordination_study import CoordinationStudy, draw_clients, joint_bound, run
from coreplay.report.studies import write_study

SMALL = CoordinationStudy(clients=6, pool=10, budget=3, dimension=8, rounds=(0, 2), seed=1)


@pytest.mark.parametrize("seed", range(3))
def test_bound_holds_the_optimum_of_a_general_solver(seed, reference):
    clients = [np.float32(rows) for rows in reference.draw(seed, clients=4, pool=7, dimension=9)]
    _, best = reference.joint([rows.astype(float) for rows in clients], [2] * 4)
    lower, upper = joint_bound(clients, 2, tolerance=1e-6)
    assert lower <= best * (1 + 1e-5) + 1e-6
    assert upper >= best * (1 - 1e-5) - 1e-6
    assert upper - lower <= 1e-5 * max(best, 1)


def test_a_budget_of_the_whole_pool_has_no_choice():
    rows = np.float32([[1, 0], [0, 1]])
    assert joint_bound([rows], 2) == pytest.approx((2.0, 2.0))


def test_clients_are_the_same_for_a_seed_and_differ_between_seeds():
    first, again = draw_clients(SMALL), draw_clients(SMALL)
    other = draw_clients(CoordinationStudy(clients=6, pool=10, budget=3, dimension=8, seed=2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not (first[0] == other[0]).all()


def test_run_and_report(tmp_path):
    steps = []
    result = run(SMALL, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (5, 5)
    assert all(o.objective >= result.lower for o in result.outcomes)
    table, paths = write_study(result, tmp_path)
    assert table.count("\n") == 6
    assert all(path.stat().st_size > 0 for path in paths)
    assert json.loads(paths[0].read_text())["config"]["clients"] == 6


def test_command(tmp_path):
    words = ["coordinate", "--clients", "5", "--pool", "8", "--dimension", "6", "--rounds", "0", "1"]
    found = CliRunner().invoke(app, [*words, "-o", str(tmp_path), "--json"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert {(o["method"], o["rounds"]) for o in result["outcomes"]} == {
        (m, r) for m in ("alternating", "corrective") for r in (0, 1)
    }
    assert (tmp_path / "convergence.png").exists()
    shown = CliRunner().invoke(app, [*words, "-o", str(tmp_path)])
    assert "| rounds |" in shown.stdout
    assert f"written: {tmp_path}" in shown.stdout
    assert "coreplay coordinate --clients 200" in CliRunner().invoke(app, ["coordinate", "--help"]).stdout


def test_command_refuses_a_folder_with_other_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    found = CliRunner().invoke(app, ["coordinate", "--clients", "3", "-o", str(tmp_path)])
    assert isinstance(found.exception, InputError)
    assert "holds other files, such as 'thesis.tex'" in str(found.exception)


@pytest.fixture
def files(tmp_path, reference):
    clients = reference.draw(0, clients=3, pool=12)
    np.save(tmp_path / "a.npy", clients[0])
    np.savez(tmp_path / "b.npz", gradients=clients[1], new=np.ones(12, bool))
    save_file({"anything": clients[2]}, tmp_path / "c.safetensors")
    return clients, [str(tmp_path / name) for name in ("a.npy", "b.npz", "c.safetensors")]


def test_command_on_files_writes_each_client_s_selection(files, tmp_path):
    clients, names = files
    out = tmp_path / "kept"
    words = ["coordinate", *names, "--budget", "4", "--rounds", "0", "3", "--method", "corrective", "-o", str(out)]
    found = CliRunner().invoke(app, [*words, "--json"])
    assert found.exit_code == 0, found.output
    expected = coordinate(clients, 4, rounds=3)
    selections = {name: kept.tolist() for name, kept in zip(names, expected.selections, strict=True)}
    assert json.loads((out / "selections.json").read_text()) == selections
    result = json.loads(found.stdout)
    assert result["selections"] == selections
    alone, joint = (outcome["objective"] for outcome in result["outcomes"])
    assert joint == pytest.approx(expected.objective, rel=1e-5)
    assert alone == pytest.approx(coordinate(clients, 4, rounds=0).objective, rel=1e-5)
    shown = CliRunner().invoke(app, words).stdout
    assert "of 3 clients, 4 of up to 12 samples each, d = " in shown
    assert "written: " in shown
    everything = CliRunner().invoke(app, ["coordinate", *names, "--budget", "12", "-o", str(out)])
    assert "everything is kept and nothing is left to coordinate" in str(everything.exception)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--clients", "5"], "--clients is for generated clients"),
        (["--method", "corective"], "did you mean 'corrective'"),
    ],
)
def test_command_on_files_names_wrong_options(files, tmp_path, more, message):
    found = CliRunner().invoke(app, ["coordinate", *files[1], *more, "-o", str(tmp_path / "kept")])
    assert isinstance(found.exception, InputError)
    assert message in str(found.exception)
    assert not (tmp_path / "kept").exists()


def test_command_on_files_names_the_wrong_file(files, tmp_path):
    _, names = files
    np.save(tmp_path / "long.npy", np.ones((12, 7)))
    np.savez(tmp_path / "gram.npz", gram=np.eye(12))
    for wrong, message in (
        ("long.npy", "long.npy' has length 7"),
        ("gram.npz", "gram.npz' has a gram only"),
        ("none.npy", "none.npy' does not exist"),
        ("a.npy", "a file is named twice"),
    ):
        words = ["coordinate", *names, str(tmp_path / wrong), "-o", str(tmp_path / "kept")]
        found = CliRunner().invoke(app, words)
        assert isinstance(found.exception, InputError)
        assert message in str(found.exception)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"concentration": 0.0},
        {"methods": ("x",)},
        {"rounds": ()},
        {"rounds": (-1,)},
        {"pool": 5, "budget": 5},
    ],
)
def test_wrong_parameters_are_refused(wrong):
    with pytest.raises(InputError):
        CoordinationStudy(**wrong)
