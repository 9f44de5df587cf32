"""Settings for all tests."""

import os
import stat

# Test workers share the cores: they and the processes that they start must not fight over them with threads of
# torch and BLAS, which read this when they are loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings

# no time limits, because compilation takes its time once; the same examples every time in CI
settings.register_profile("coreplay", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("coreplay")


@pytest.fixture
def modes():
    """Give a function that returns the mode of everything below a folder, by relative path, under umask 022."""
    before = os.umask(0o022)
    yield lambda folder: {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]
    }
    os.umask(before)
