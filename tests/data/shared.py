"""The real streams beside the repository, for tests that need them."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT.parent / "shared" / "data", Path("/work/shared/data")]
SHARED = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])


def needs_shared_data(test):
    marked = pytest.mark.needs_shared_data(test)
    return pytest.mark.skipif(not SHARED.is_dir(), reason="the real streams are not beside the repository")(marked)


def real(name):
    return SHARED / name / "data.jsonl.gz"
