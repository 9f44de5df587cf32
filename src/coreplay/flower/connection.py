"""Flower's programs: the environment that they run in, and the connection to a SuperLink."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.errors import InputError
from coreplay.files import read_json
from coreplay.runtime.engine import EngineError

CONNECTION = "coreplay"
ANSWER = 120.0  # seconds that the SuperLink has for an answer
SETTINGS = {  # nothing asks the network, and nothing is installed behind anyone's back
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


@dataclass(frozen=True)
class Connection:
    """How Flower's command reaches a SuperLink: the connection's name, and the folder with Flower's configuration."""

    name: str
    home: Path | None
    clients: int = 1  # SuperNodes that were started with it

    @classmethod
    def find(cls, connection: str | None) -> "Connection":
        """Find the connection by a folder of `coreplay flower up`, or a name in Flower's own configuration."""
        if not connection:
            raise InputError(
                "engine 'flower' needs engine.connection (--connection): the folder of `coreplay flower up`, or a "
                "connection's name in Flower's configuration"
            )
        home = Path(connection) / "flwr"
        if home.is_dir():
            about = Path(connection) / "deployment.json"
            if not about.exists():
                raise InputError(f"the deployment in {connection!r} is not running: start it with coreplay flower up")
            return cls(CONNECTION, home.absolute(), int(read_json(about)["clients"]))
        if "/" in connection:
            raise InputError(f"connection {connection!r}: there is no deployment in that folder")
        return cls(connection, None)

    def ask(self, *arguments: str, timeout: float = ANSWER) -> Any:
        """Call `flwr`, which ctrl-C does not reach, and return what it prints, read as JSON."""
        name = f"`flwr {arguments[0]}`"
        try:
            done = subprocess.run(
                ["flwr", *arguments, "--format", "json"],
                env=environment(self.home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"{name} did not answer within {timeout:g} s") from None
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = {"success": False}
        if done.returncode or not found.get("success", True):
            reason = str(found.get("error-message") or (done.stderr + done.stdout).strip() or "no reason given")
            raise EngineError(f"{name} failed: {reason.strip().splitlines()[-1][:300]}")
        return found
