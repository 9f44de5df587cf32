"""Runs that all tests of the report share: made once, real."""

import shutil

import pytest

from coreplay.report.api import write
from tests.report.making import SEEDS, make_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Make six strategies and budgets with two seeds; a stopped run and a damaged one lie beside them."""
    folder = make_runs(tmp_path_factory.mktemp("report-runs"), SEEDS)
    shutil.copytree(folder / "none-seed0", folder / "deep/down/stopped")
    (folder / "deep/down/stopped/summary.json").unlink()
    shutil.copytree(folder / "none-seed0", folder / "damaged")
    (folder / "damaged/metrics.jsonl").write_text("{")
    return folder


@pytest.fixture(scope="session")
def written(runs, tmp_path_factory):
    """Write the report on those runs once."""
    said = []
    report = write([runs], tmp_path_factory.mktemp("report") / "report", say=said.append)
    return report, said


@pytest.fixture
def undrawn(monkeypatch):
    """Leave out drawing the files of figures, which takes longest."""
    monkeypatch.setattr("coreplay.report.api.save_figure", lambda figure, *paths: None)
    monkeypatch.setattr("coreplay.report.api.read_text", lambda path: '<svg width="9pt" height="9pt"/>')
