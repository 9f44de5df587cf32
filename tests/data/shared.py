"""The real streams beside the repository (or where COREPLAY_SHARED_DATA says), for tests that need them."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("COREPLAY_SHARED_DATA", ROOT.parent / "shared" / "data"))


def needs_shared_data(test):
    marked = pytest.mark.needs_shared_data(test)
    return pytest.mark.skipif(not SHARED.is_dir(), reason="the real streams are not beside the repository")(marked)


def real(name):
    return SHARED / name / "data.jsonl.gz"
