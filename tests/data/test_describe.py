"""Divergences against their definition, the description of a stream, and the commands as a user runs them."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from coreplay.cli import main
from coreplay.data import FederatedStream, load, save
from coreplay.data.describe import between_rows, describe, to_the_rest
from coreplay.report.renderer import save_figure
from coreplay.report.studies import stream_figure, stream_table
from tests.data.shared import needs_shared_data, real


@dataclass(frozen=True)
class Shown:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def coreplay(capsys, monkeypatch):
    """Run the command line in this process, which saves the time of the imports."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["coreplay", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return Shown(int(ended.value.code or 0), written.out, written.err)

    return run


def jensen_shannon(p, q):
    if not p.sum() or not q.sum():
        return 0.0
    p, q = p / p.sum(), q / q.sum()
    both = [(a, b, (a + b) / 2) for a, b in zip(p, q, strict=True)]
    return sum(x * math.log2(x / m) / 2 for a, b, m in both for x in (a, b) if x)


COUNTS = arrays(np.float64, (4, 6), elements=st.integers(0, 9).map(float))


@given(COUNTS)
def test_divergences_are_as_defined(counts):
    table = between_rows(counts)
    for a in range(len(counts)):
        for b in range(len(counts)):
            assert table[a, b] == pytest.approx(jensen_shannon(counts[a], counts[b]), abs=1e-9)
    counts = counts[counts.sum(axis=1) > 0]
    rest = to_the_rest(csr_array(counts))
    for k in range(len(counts)):
        others = np.delete(counts, k, axis=0).sum(axis=0)
        if others.sum():
            assert rest[k] == pytest.approx(jensen_shannon(counts[k], others), abs=1e-9)
        else:
            assert np.isnan(rest[k])


def test_a_stream_is_described_as_it_is():
    stream = FederatedStream(
        ["a", "a", "b", "b", "b"], [0, 1, 0, 1, 1], [0, 0, 0, 0, 1], ["Stop it!", "don't", "stop it", "go", "don't"]
    )
    text, details = describe(stream)
    assert (text.samples, text.test_samples, text.clients, text.periods) == (5, 1, 2, 2)
    assert text.vocabulary == 4
    assert text.distinct == 4
    assert text.mean_words == pytest.approx(7 / 5)
    assert text.samples_per_period == [2, 3]
    assert text.drift_first_last == pytest.approx(1.0)
    assert details.counts.tolist() == [[1, 1], [1, 2]]
    p, q = np.array([1, 1, 1, 0]) / 3, np.array([1, 1, 1, 1]) / 4
    assert text.heterogeneity == pytest.approx(jensen_shannon(p, q))


def test_one_client_or_one_period_can_be_described(tmp_path):
    stream = FederatedStream(["a", "a"], [0, 0], [0, 1], ["x", "y"])
    text, details = describe(stream)
    assert text.drift_neighbours == []
    assert text.heterogeneity == 0
    save_figure(stream_figure("alone", text, details), tmp_path / "alone.svg")
    assert "| 0 | 2 | 1 |  |" in stream_table("alone", text)


def test_describe_command(tmp_path, coreplay):
    save(load("synthetic", num_clients=12, num_periods=3), tmp_path / "s.parquet")
    shown = coreplay("data", "describe", tmp_path / "s.parquet", "--figure", tmp_path / "s.png")
    assert shown.returncode == 0, shown.stderr
    assert "| clients | 12 |" in shown.stdout
    assert "random split" in shown.stdout
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(
        coreplay(
            "data", "describe", "synthetic", "--option", "num_clients=12", "--option", "num_periods=3", "--json"
        ).stdout
    )
    assert told["clients"] == 12
    assert told["heterogeneity"] > told["heterogeneity_random"]


def test_describe_command_maps_columns_and_tells_what_it_skipped(tmp_path, coreplay):
    lines = ["who,said,at", *(f"u{k % 3},text {k},2026-01-{1 + k % 28:02d}" for k in range(60)), "u1,,2026-01-02"]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    given = ("columns.client=who", "columns.text=said", 'columns.timestamp="at"', "periods.days=7", "periods.number=4")
    named = [part for option in given for part in ("--option", option)]
    shown = coreplay("data", "describe", tmp_path / "log.csv", *named, "--json")
    assert shown.returncode == 0, shown.stderr
    assert (
        json.loads(shown.stdout)["samples_per_period"] == [17, 15, 14, 14] or json.loads(shown.stdout)["periods"] == 4
    )
    assert f"warning: empty text in 1 row, first at {tmp_path / 'log.csv'}:62: skipped" in shown.stderr
    wrong = coreplay("data", "describe", tmp_path / "log.csv")
    assert wrong.returncode == 2
    assert "log.csv:2: unknown column 'client_id'" in wrong.stderr
    assert coreplay("data", "describe", tmp_path / "log.csv", *named, "--figure", "x.gif").returncode == 2
    both = coreplay("data", "describe", tmp_path / "log.csv", "--option", "periods=3", "--option", "periods.days=3")
    assert both.returncode == 2
    assert "--option periods is given as a whole: leave out --option periods.days" in both.stderr
    early = coreplay("data", "make", "files", "-o", tmp_path / "x.csv", "--option", "path=nowhere.jsonl")
    assert "has suffix '.csv': use .parquet" in early.stderr  # said before anything is read
    assert "did you mean 'synthetic'?" in coreplay("data", "describe", "syntetic").stderr
    missing = coreplay("data", "make", "files", "-o", tmp_path / "s.parquet")
    assert missing.returncode == 2
    assert missing.stderr == "error: source 'files' needs the option 'path': give it a value\n"


def test_make_and_sources_commands(tmp_path, coreplay):
    out = tmp_path / "s.parquet"
    shown = coreplay("data", "make", "digits", "-o", out, "--option", "num_clients=4", "--json")
    assert json.loads(shown.stdout)["samples"] == 1797
    assert len(load("files", path=out).clients) == 4
    shown = coreplay("data", "make", "synthetic", "-o", out, "--option", "num_clients=3", "--option", "num_periods=2")
    assert "3 clients, 2 periods" in shown.stdout
    assert coreplay("data", "make", "synthetic", "-o", out, "--option", "clients").returncode == 2
    assert set(json.loads(coreplay("data", "sources", "--json").stdout)) >= {"synthetic", "files", "huggingface"}
    assert "digits " in coreplay("data", "sources").stdout


@pytest.mark.parametrize("command", ["sources", "make", "describe"])
def test_help_shows_an_example(command, coreplay):
    assert f"Example: coreplay data {command}" in coreplay("data", command, "--help").stdout


@needs_shared_data
@pytest.mark.parametrize("name", ["apache_commits", "debian_changelogs", "slurp_speakers"])
def test_the_real_streams_can_be_described(name, tmp_path, coreplay):
    shown = coreplay("data", "describe", real(name), "--figure", tmp_path / "s.png", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["drift_first_last"] > 1.5 * json.loads(shown.stdout)["drift_first_last_random"]
