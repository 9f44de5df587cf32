"""A Flower app to start from: complete, small, and the user's own to change."""

from pathlib import Path

from coreplay.errors import InputError
from coreplay.files import write_text

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Continual federated learning with coordinated replay"
license = "Apache-2.0"
dependencies = []  # empty on purpose: Flower would install them on every machine; coreplay is installed beside flwr

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "coreplay"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
folder = "run"        # where the server keeps the run
config = "run.toml"   # the run's configuration, on the server's machine
resume = false
result = ""           # a file that says how it ended, if somebody waits for it
"""

_SERVER = '''\
"""Conducts the run: periods, rounds, evaluation, and the choice of what to keep."""

from coreplay.flower import server_app as app

__all__ = ["app"]
'''

_CLIENT = '''\
"""Trains, measures and chooses at one client; its buffer lies in the folder that the node config names."""

from coreplay.flower import client_app as app

__all__ = ["app"]
'''


def write_app(folder: Path, name: str = "coreplay-run") -> list[Path]:
    """Write the app into a new or empty folder, and return its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} exists and is not empty: choose another folder")
    texts = {
        "pyproject.toml": _PROJECT.format(name=name),
        "server_app.py": _SERVER,
        "client_app.py": _CLIENT,
    }
    for file, text in texts.items():
        write_text(folder / file, text)
    return [folder / file for file in texts]
