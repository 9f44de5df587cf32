"""The package as others get it: instant to import, buildable, installable, named consistently."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import coreplay
from coreplay.seeding import generator

ROOT = Path(__file__).parent.parent


def test_import_needs_no_heavy_library():
    script = (
        "import sys, coreplay; dir(coreplay); "
        "print(sorted({'torch', 'flwr', 'numpy', 'numba', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_every_public_name_loads():
    for name in coreplay.__all__:
        assert getattr(coreplay, name) is not None
    misspelt = "selct"
    with pytest.raises(AttributeError, match="no attribute 'selct'"):
        getattr(coreplay, misspelt)


def test_generators_differ_by_every_key_and_only_by_them():
    keys = [(0,), (1,), (0, "a"), (0, "a", 1), (0, "a", "1"), (0, "a1"), (0, 1), (0, "1")]
    first = {key: generator(*key).integers(2**62) for key in keys}
    assert len(set(first.values())) == len(keys)
    assert all(generator(*key).integers(2**62) == value for key, value in first.items())


def test_wheel_and_sdist_build_and_the_wheel_runs(tmp_path):
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    assert len(list(tmp_path.glob("coreplay-*.tar.gz"))) == 1
    (wheel,) = tmp_path.glob("coreplay-*.whl")
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    assert (target / "coreplay" / "py.typed").exists()
    assert (target / "coreplay" / "report" / "template.html").exists()
    script = "import coreplay; print(coreplay.__file__, coreplay.select([[1, 0], [-1, 0], [1, 1]], budget=2))"
    shown = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(target)}, text=True, capture_output=True, check=True
    )
    assert str(target) in shown.stdout
    assert "[0 1]" in shown.stdout


def test_changelog_knows_this_version():
    assert f"## {coreplay.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_is_pinned():
    pins = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    listed = re.findall(r'^\s*"([A-Za-z0-9_-]+)(?:\[\w+\])?[<>=]', (ROOT / "pyproject.toml").read_text(), re.M)
    assert len(listed) > 15
    assert {name.lower() for name in listed} - pins == set()
