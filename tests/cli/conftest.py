"""A folder with a finished run."""

import pytest

from coreplay.runtime import Config, run
from tests.cli.common import TINY


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make a folder with run.toml and the finished run `done`."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run.toml").write_text(Config.make(TINY).toml())
    run(Config.make(TINY, {"engine.name": "serial"}), folder / "done")
    return folder
