"""Every Python block of README and docs runs; shell blocks name real commands and options; TOML blocks are valid."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from coreplay.experiments.sweep import Sweep
from coreplay.federated import Config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(language):
    for page in PAGES:
        for k, code in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            yield pytest.param(code, id=f"{page.relative_to(ROOT)}-{k}")


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_block_runs(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", list(blocks("sh")))
def test_shell_block_names_real_commands(code):
    for line in code.splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["coreplay"]:
            command = words[1:3] if words[1] in ("data", "flower") else words[1:2]
            shown = subprocess.run(
                [sys.executable, "-c", "from coreplay.cli import main; main()", *command, "--help"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert shown.returncode == 0, line
            options = [word for word in words if word.startswith("--")]
            assert all(option in shown.stdout for option in options), line
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), line


@pytest.mark.parametrize("code", list(blocks("toml")))
def test_toml_block_is_a_configuration(code):
    data = tomllib.loads(code)
    Sweep.make(data) if "strategies" in data else Config.make(data)


def test_the_configuration_page_shows_every_field():
    assert Config().toml() in (ROOT / "docs/runs.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
