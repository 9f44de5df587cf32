"""Settings for all tests."""

import os
import stat

import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

# no time limits, because compilation takes its time once; the same examples every time in CI
settings.register_profile("coreplay", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("coreplay")

threadpool_limits(1)  # two test workers on two cores must not fight over the threads of BLAS


@pytest.fixture
def modes():
    """Give a function that returns the mode of everything below a folder, by relative path, under umask 022."""
    before = os.umask(0o022)
    yield lambda folder: {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]
    }
    os.umask(before)
