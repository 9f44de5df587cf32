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
events = ""           # a file for the run's events, one per line, if somebody follows it
"""

_MODULE = """\
from coreplay.flower import {kind}_app as app

__all__ = ["app"]
"""


def write_app(folder: Path, name: str = "coreplay-run") -> list[Path]:
    """Write the app into a new or empty folder, and return its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} exists and is not empty: choose another folder")
    texts = {f"{kind}_app.py": _MODULE.format(kind=kind) for kind in ("server", "client")}
    texts["pyproject.toml"] = _PROJECT.format(name=name)
    for file, text in texts.items():
        write_text(folder / file, text)
    return [folder / file for file in texts]
