"""Flower's own configuration goes to a temporary folder."""

import pytest

from coreplay.flower.connection import quiet


@pytest.fixture(autouse=True, scope="session")
def _flower_at_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_HOME", str(tmp_path_factory.mktemp("flwr")))
        quiet()
        yield
