"""Flower's surroundings: nothing asks the network, and nothing is installed behind anyone's back."""

import os
import sys
from pathlib import Path

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_free_objects_batch_size": "1",  # a vector that nobody needs any more goes at once
    "RAY_free_objects_period_milliseconds": "100",
}


def quiet() -> None:
    """Set Flower's and Ray's switches for this process, before either is imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def environment(home: Path | None = None) -> dict[str, str]:
    """Return the environment for Flower's programs: our own interpreter's programs first."""
    found = SETTINGS | dict(os.environ)
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
    if home is not None:
        found["FLWR_HOME"] = str(home)
    return found
