"""Settings for all tests."""

import os

from hypothesis import settings
from threadpoolctl import threadpool_limits

# no time limits, because compilation takes its time once; the same examples every time in CI
settings.register_profile("coreplay", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("coreplay")

threadpool_limits(1)  # two test workers on two cores must not fight over the threads of BLAS
