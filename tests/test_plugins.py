"""Plugins: extensions from files of the user's own."""

import subprocess
import sys

import numpy as np
import pytest

import coreplay
from coreplay import plugins, registry
from coreplay.errors import InputError
from coreplay.plugins import load_again, load_plugins, load_sources, loaded_plugins, plugin_sources
from coreplay.registry import PluginWarning
from coreplay.runtime import Config, RunFolder
from coreplay.runtime.run_index import list_runs

LAST = '''
import numpy as np
import coreplay

@coreplay.selector("{name}")
def last(pool, budget, rng, *, step: int = 1):
    """Keep the last samples."""
    return np.arange(pool.size)[::-step][:budget]
'''


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Let each test begin with no plugins, and forget its own."""
    monkeypatch.setattr(plugins, "_loaded", {})
    before = set(registry.own)
    yield
    for key in set(registry.own) - before:
        registry.forget(registry.own[key])


@pytest.fixture
def last(tmp_path):
    path = tmp_path / "mine" / "last.py"
    path.parent.mkdir()
    path.write_text(LAST.format(name="last"))
    return path


def test_a_file_is_loaded_once_wherever_its_copies_are(last, tmp_path):
    load_plugins(["last.py"], last.parent)
    assert coreplay.select(np.eye(5), budget=2, method="last").tolist() == [3, 4]
    assert coreplay.selectors()["last"] == "Keep the last samples."
    copy = tmp_path / "last.py"
    copy.write_text(last.read_text())
    load_plugins([str(copy), str(last)])
    assert len(loaded_plugins()) == 1
    with pytest.raises(InputError, match="option 'step' of method 'last': got 'x': must be a whole number"):
        coreplay.select(np.eye(5), budget=2, method="last", step="x")


def test_a_changed_file_is_refused_with_both_names(last, tmp_path):
    load_plugins([str(last)])
    other = tmp_path / "last.py"
    other.write_text(LAST.format(name="other"))
    with pytest.raises(InputError, match=f"{other}' differs from '{last}', .* rename one"):
        load_plugins([str(other)])
    last.write_text(LAST.format(name="other"))
    with pytest.raises(InputError, match=f"{last}' has changed since this process loaded it: start the program again"):
        load_plugins([str(last)])
    assert plugin_sources([str(last)]) == {"last.py": LAST.format(name="last")}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("absent.py", None, "absent.py' does not exist: name a .py file"),
        ("notes.txt", "", "'notes.txt' is neither a .py file nor the name of a module"),
        ("no module", None, "'no module' is neither"),
        ("absent_module_for_test", None, "no module 'absent_module_for_test' to import for plugin .*: install it"),
        ("absent_module_for_test.part", None, "no module 'absent_module_for_test'"),
        ("wrong.py", "x = 1\ny = x / 0\n", "wrong.py' can't be loaded, line 2: ZeroDivisionError: division by zero"),
        ("wrong.py", "x = (\n", "wrong.py' can't be loaded, line 1: SyntaxError: .*was never closed"),
        ("wrong.py", "import sys\nsys.exit(3)\n", "wrong.py' can't be loaded, line 2: SystemExit: 3"),
        ("wrong.py", "import absent_for_test\n", "line 1: ModuleNotFoundError: No module named 'absent_for_test'"),
        (
            "wrong.py",
            LAST.format(name="polished"),
            "line 5: method 'polished' is known already, from module 'coreplay.selection.methods.*choose another name",
        ),
    ],
)
def test_faults_are_named_with_the_plugin_and_the_line(name, text, words, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        load_plugins([name], tmp_path)
    assert not loaded_plugins()


def test_a_name_of_another_plugin_is_refused_with_whose_it_is(last, tmp_path):
    load_plugins([str(last)])
    (tmp_path / "second.py").write_text(LAST.format(name="last"))
    with pytest.raises(InputError, match=f"'last' is known already, from plugin '{last}'"):
        load_plugins([str(tmp_path / "second.py")])


def test_what_failed_half_way_is_taken_back_and_may_be_mended(last):
    last.write_text(LAST.format(name="last") + "raise ValueError('not yet')\n")
    with pytest.raises(InputError, match="ValueError: not yet"):
        load_plugins([str(last)])
    assert "last" not in coreplay.selectors()
    last.write_text(LAST.format(name="last"))
    load_plugins([str(last)])
    assert "last" in coreplay.selectors()


def test_a_plugin_that_registers_nothing_is_named(tmp_path):
    (tmp_path / "idle.py").write_text("x = 1\n")
    with pytest.warns(PluginWarning, match="'idle.py' registers nothing: decorate"):
        load_plugins(["idle.py"], tmp_path)


def test_modules_may_be_plugins(tmp_path, monkeypatch):
    (tmp_path / "module_for_test.py").write_text(LAST.format(name="of_module"))
    monkeypatch.syspath_prepend(tmp_path)
    config = Config.make({"plugins": ["module_for_test"], "replay": {"strategy": "of_module"}})
    assert config.plugins == ["module_for_test"]
    assert plugin_sources(config.plugins) == {}


def test_texts_go_to_another_place(last, tmp_path):
    sources = plugin_sources(["last.py"], last.parent)
    assert "last" not in coreplay.selectors()
    load_sources(sources, tmp_path / "there")
    assert (tmp_path / "there" / "last.py").read_text() == last.read_text()
    assert "last" in coreplay.selectors()
    with pytest.raises(InputError, match=r"another plugin called 'last.py' is in"):
        load_sources({"last.py": "x = 1\n"}, tmp_path / "there")
    for name in ("../last.py", "/tmp/last.py", "last.txt"):
        with pytest.raises(InputError, match=r"must be the plain name of a .py file"):
            load_sources({name: ""}, tmp_path / "there")


def test_another_process_loads_what_this_one_has_though_the_file_is_gone(last):
    load_plugins([str(last)])
    known = loaded_plugins()
    last.unlink()
    code = f"import coreplay; from coreplay.plugins import Plugin, load_again; load_again({known!r})"
    subprocess.run([sys.executable, "-c", code + "; assert 'last' in coreplay.selectors()"], check=True)
    load_again(known)


def test_a_run_keeps_its_plugins_and_reading_it_does_not_run_them(last, tmp_path):
    last.write_text(LAST.format(name="last") + f"with open({str(tmp_path / 'ran')!r}, 'a') as f:\n    f.write('x')\n")
    (last.parent / "run.toml").write_text("plugins = ['last.py']\nreplay.strategy = 'last'\n")
    config = Config.load(last.parent / "run.toml")
    assert config.plugins == [str(last)]
    folder = RunFolder.create(tmp_path / "runs" / "first", config)
    assert (folder.path / "plugins" / "last.py").read_text() == last.read_text()
    assert 'plugins = ["plugins/last.py"]' in (folder.path / "config.toml").read_text()
    last.unlink()
    # in another process, in which the plugin is not known
    place = tmp_path / "runs"
    code = f"""
from coreplay.runtime import RunFolder
from coreplay.runtime.run_index import list_runs
print(list_runs({str(place)!r}))
config = RunFolder.open({str(folder.path)!r}).config()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "ran").read_text() == "x"  # not again
    assert list_runs(place)[0].strategy == "last"
    subprocess.run([sys.executable, "-c", code + "config.checked()"], check=True)
    assert (tmp_path / "ran").read_text() == "xx"  # by who goes on with it


def test_the_report_of_a_run_does_not_run_its_plugins(last, tmp_path):
    ran = tmp_path / "ran"
    last.write_text(LAST.format(name="last") + f"with open({str(ran)!r}, 'a') as f:\n    f.write('x')\n")
    config = Config.make(
        {
            "plugins": [str(last)],
            "stream": {"source": "digits", "options": {"num_clients": 3, "num_periods": 2}},
            "task": {"name": "image_classification", "options": {"channels": 2}},
            "federated": {"rounds": 1},
            "replay": {"strategy": "last", "budget": 3},
            "gradients": {"sketch_size": 16},
            "engine": {"name": "serial"},
        }
    )
    coreplay.run(config, tmp_path / "runs" / "first")
    both = """
import sys
from contextlib import suppress
from coreplay.cli import main
for words in (["runs", "runs"], ["report", "runs", "-o", "report"]):
    sys.argv = ["coreplay", *words]
    with suppress(SystemExit):
        main()
    print("---")
"""
    shown = subprocess.run([sys.executable, "-c", both], cwd=tmp_path, capture_output=True, text=True, check=True)
    listed, told, _ = shown.stdout.split("---\n")
    assert "last" in listed
    assert "last" in told
    assert ran.read_text() == "x"  # once, by the run itself
    command = [sys.executable, "-m", "coreplay", "run", "--resume", "runs/first"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert ran.read_text() == "xx"


class _Point:
    name, value, dist = "theirs", "their_package.plugin", None

    def load(self):
        raise RuntimeError("out of date")


def test_a_broken_package_is_named_and_left_out(monkeypatch):
    monkeypatch.setattr(registry, "_offered", False)
    monkeypatch.setattr(registry, "entry_points", lambda group: [_Point()] if group == "coreplay.plugins" else [])
    with pytest.warns(PluginWarning, match="'theirs' of the installed package 'their_package.plugin' can't be loaded"):
        assert "polished" in coreplay.selectors()


def test_an_installed_package_is_loaded_on_first_use(tmp_path):
    (tmp_path / "theirs.py").write_text(LAST.format(name="theirs"))
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[coreplay.plugins]\ntheirs = theirs\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import coreplay; assert 'theirs' in coreplay.selectors()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
