"""The command line: what it reads, writes, says and refuses."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from coreplay.cli import main

ROWS = np.random.default_rng(0).normal(size=(12, 4))


def coreplay(*arguments, cwd=None):
    """Call the command line in this process: a process of its own would spend its time on loading libraries."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["coreplay", *map(str, arguments)])
        for name, value in (("COLUMNS", "200"), ("NO_COLOR", "1"), ("TERM", "dumb")):
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            main()
    return SimpleNamespace(returncode=end.value.code or 0, stdout=out.getvalue(), stderr=err.getvalue())


def in_a_process(*arguments):
    """Call the command line as a user does."""
    command = [sys.executable, "-c", "from coreplay.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def pool(tmp_path):
    np.save(tmp_path / "pool.npy", ROWS)
    np.savez(tmp_path / "pool.npz", gradients=ROWS, new=np.arange(12) > 3)
    np.savez(tmp_path / "gram.npz", gram=ROWS @ ROWS.T)
    save_file({"anything": ROWS.astype(np.float32)}, tmp_path / "pool.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "select",
        "near-optimality",
        "coordinate",
        "demo",
        "run",
        "runs",
        "sweep",
        "report",
        "selectors",
        "algorithms",
        "data sources",
        "data make",
        "flower up",
    ],
)
def test_help_shows_an_example(command):
    shown = coreplay(*command.split(), "--help")
    assert shown.returncode == 0
    assert f"Example: coreplay {command}" in shown.stdout


def test_help_explains_arguments():
    assert "Gradients, one row per sample" in coreplay("select", "--help").stdout
    assert "with --resume, the run's folder" in coreplay("run", "--help").stdout


def test_select_says_that_a_small_pool_is_kept_whole(pool):
    shown = coreplay("select", pool / "pool.npy", "--budget", 12)
    assert len(shown.stdout.split()) == 12
    assert "the pool of 12 is not larger than the budget of 12: all samples are kept" in shown.stderr


def test_version_and_help_import_nothing_heavy():
    script = (
        "import sys; sys.argv = ['coreplay', '--help']\n"
        "from coreplay.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'scipy', 'torch', 'flwr', 'matplotlib', 'transformers'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "near-optimality" in shown.stdout
    assert "heavy: []" in shown.stdout
    assert in_a_process("--version").stdout.startswith("coreplay 0.")


@pytest.mark.parametrize("name", ["pool.npy", "pool.npz", "pool.safetensors", "gram.npz"])
def test_select_reads_every_kind_of_file(pool, name):
    shown = coreplay("select", pool / name, "--budget", 3, "--method", "exact", "--json")
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["pool"] == 12
    assert result["proved"] is True
    plain = coreplay("select", pool / name, "--budget", 3, "--method", "exact")
    assert [int(line) for line in plain.stdout.split()] == result["indices"]


def test_select_uses_what_the_file_tells(pool):
    arguments = (
        "select",
        pool / "pool.npz",
        "--budget",
        4,
        "--method",
        "fixed_proportion",
        "--option",
        "proportion=0.25",
    )
    kept = json.loads(coreplay(*arguments, "--json").stdout)["indices"]
    assert sum(i > 3 for i in kept) == 1


@pytest.mark.parametrize("name", ["kept.npy", "kept.json"])
def test_select_writes_indices(pool, name):
    shown = coreplay("select", pool / "pool.npy", "--budget", 3, "-o", pool / name)
    assert shown.returncode == 0, shown.stderr
    assert "kept 3 of 12, objective" in shown.stdout
    alone = in_a_process("select", pool / "pool.npy", "--budget", 3)
    assert (alone.returncode, alone.stderr) == (0, "")
    written = np.load(pool / name) if name.endswith("npy") else json.loads((pool / name).read_text())
    assert list(written) == [int(i) for i in alone.stdout.split()]


def truncated(pool):
    (pool / "bad.npy").write_bytes((pool / "pool.npy").read_bytes()[:-20])
    return "bad.npy"


def with_nan(pool):
    np.save(pool / "bad.npy", np.where(np.arange(12)[:, None] == 7, np.nan, ROWS))
    return "bad.npy"


def objects(pool):
    np.save(pool / "bad.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    return "bad.npy"


def garbage(suffix):
    def write(pool):
        (pool / f"bad{suffix}").write_bytes(b"\x00garbage\xff" * 50)
        return f"bad{suffix}"

    return write


def huge(pool):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000), }"
    (pool / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return "bad.npy"


def two_arrays(pool):
    np.savez(pool / "bad.npz", a=ROWS, b=ROWS)
    return "bad.npz"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (truncated, "can't be read as npy"),
        (with_nan, "gradients must be finite: row 7"),
        (objects, "can't be read as npy"),
        (garbage(".npy"), "can't be read as npy"),
        (garbage(".npz"), "can't be read as npz"),
        (garbage(".safetensors"), "can't be read as safetensors"),
        (garbage(".pkl"), "has suffix '.pkl': pass a .npy"),
        (huge, "more numbers than fit into memory"),
        (two_arrays, "name one of them 'gradients' or 'gram'"),
        (lambda pool: "missing.npy", "does not exist"),
        (lambda pool: ".", "does not exist or is no file"),
    ],
)
def test_a_bad_file_is_an_error_without_a_traceback_and_leaves_nothing_behind(pool, make, message):
    name = make(pool)
    before = sorted(p.name for p in pool.iterdir())
    shown = coreplay("select", pool / name, "--budget", 3, "-o", pool / "kept.npy")
    assert shown.returncode == 2
    assert shown.stderr.startswith("error: ")
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr
    assert sorted(p.name for p in pool.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "0"), "budget must be at least 1: got 0"),
        (("--budget", "x"), "'x' is not a valid int"),
        ((), "Missing option"),
        (("--budget", "3", "--method", "exakt"), "did you mean 'exact'?"),
        (("--budget", "3", "--option", "time"), "--option must be name=value: got 'time'"),
        (("--budget", "3", "-o", "kept.txt"), "use .npy or .json"),
        (("--budget", "3", "--gram"), "gram must be square: got shape (12, 4)"),
        (("--budget", "3", "--seed", "-1"), "seed must be at least 0"),
    ],
)
def test_wrong_arguments_end_with_code_2(pool, arguments, message):
    shown = coreplay("select", "pool.npy", *arguments, cwd=pool)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr


def test_an_unknown_command_ends_with_code_2_and_one_suggestion():
    shown = coreplay("selekt")
    assert shown.returncode == 2
    assert shown.stderr.count("Did you mean") == 1
    assert "'select'" in shown.stderr


def test_selectors_lists_all():
    shown = json.loads(coreplay("selectors", "--json").stdout)
    assert {"polished", "exact", "relaxation", "naive_uniform"} <= set(shown)
    assert "polished" in coreplay("selectors").stdout


def test_near_optimality_from_the_command_line(tmp_path):
    arguments = ("near-optimality", "--n", "8", "10", "--budget", "3", "--repeats", "6", "--mixture", "uncentred")
    shown = coreplay(*arguments, "-o", tmp_path / "out", "--json", "--method", "polished", "naive_uniform")
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert {(row["n"], row["method"]) for row in result["rows"]} == {
        (n, method) for n in (8, 10) for method in ("polished", "naive_uniform", "exact")
    }
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    taken = coreplay(*arguments, "-o", tmp_path / "taken")
    assert taken.returncode == 2
    assert "thesis.txt" in taken.stderr
    wrong = coreplay("near-optimality", "--n", "3", "--budget", "5", "-o", tmp_path / "other")
    assert wrong.returncode == 2
    assert "n must be larger than the budget: got 3 for a budget of 5" in wrong.stderr
    assert not (tmp_path / "other").exists()
