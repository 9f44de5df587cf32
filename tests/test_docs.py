"""The code in README and docs: blocks run, commands and options are real, configurations are valid, the site builds.

On the start page and in the tutorials a reader goes from block to block, so there the blocks of a page run in order in
one folder: a block with a title is written to the file of that name, Python and shell blocks are carried out. On all
other pages each Python block runs by itself, and of shell blocks the names and options are checked. Python blocks and
plain calls of `coreplay` run in forks of one process that has loaded the libraries, because torch and transformers take
seconds to load. Comments mark the exceptions: `<!-- not run: WHY -->` before a block of which names and options are
checked alone, and `<!-- excerpt: FILE -->` before one whose lines must stand in that file.
"""

import ast
import dataclasses
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from coreplay.experiments.sweep import Sweep
from coreplay.report import tables
from coreplay.report.compare import group_runs
from coreplay.report.load import load_runs
from coreplay.runtime import Config
from tests.report.chromium import MISSING, chromium

pytestmark = pytest.mark.xdist_group("docs")  # which share a process that has loaded the libraries, and a site
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PLANS = ROOT / "benchmarks/sweeps"
WALKED = [ROOT / "docs/index.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]
SURROUNDINGS = os.environ | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    "NO_MKDOCS_2_WARNING": "1",  # an advertisement of mkdocs-material
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title if it has one, the comment that marks it, and its text."""

    language: str
    title: str
    mark: str
    code: str


def blocks_of(page):
    found = re.findall(r'(?:<!-- (.*?) -->\n)?```(\w+)(?: title="(.*?)")?\n(.*?)```', page.read_text(), re.DOTALL)
    return [Block(language, title, mark, code) for mark, language, title, code in found]


def blocks(language, pages=PAGES):
    for page in pages:
        of_language = [block for block in blocks_of(page) if block.language == language]
        for k, block in enumerate(of_language):
            yield pytest.param(block, id=f"{page.relative_to(ROOT)}-{k}")


def run(command, folder, **options):
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=SURROUNDINGS, check=False, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


FORKS = """
import json, os, sys
import datasets, matplotlib.pyplot, numba, pandas, sklearn.datasets, torch, transformers.models.bert.modeling_bert
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.chdir(job["folder"])
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1), os.dup2(output, 2)
    sys.argv, sys.path[0] = ["coreplay", *job["arguments"]], job["folder"]
    for code in job["codes"]:
        print(code, flush=True)
        exec(compile(code, "block", "exec"), {"__name__": "__main__"})
    sys.exit()
"""


class Forks:
    """A process with the libraries loaded, none of coreplay's modules, whose forks carry out code."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": SURROUNDINGS}
        self.process = subprocess.Popen([sys.executable, "-c", FORKS], **pipes)

    def python(self, codes, folder, arguments=()):
        """Run pieces of code in turn in one fork; what was printed last is the piece that failed."""
        output = folder / ".output"
        job = {"codes": codes, "folder": str(folder), "output": str(output), "arguments": arguments}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        code = self.process.stdout.readline().strip()
        assert code == "0", output.read_text()[-6000:]

    def shell(self, code, folder):
        """Run a shell block; where it needs no shell, the command line in a fork and all else by itself."""
        if re.search(r"[&|;<>$*]", code):
            run(["bash", "-euo", "pipefail", "-c", code], folder)
            return
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["coreplay"]:
                self.python(["from coreplay.cli import main; main()"], folder, words[1:])
            elif words:
                run(words, folder)


@pytest.fixture(scope="module")
def forks():
    made = Forks()
    yield made
    made.process.communicate()


def pages_with_python():
    for page in PAGES:
        found = [block.code for block in blocks_of(page) if block.language == "python"]
        if found and page not in WALKED:
            yield pytest.param(found, id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("codes", list(pages_with_python()))
def test_python_blocks_run_each_by_itself(codes, forks, tmp_path):
    forks.python(codes, tmp_path)


@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.name)
def test_a_reader_can_walk_through_the_page(page, forks, tmp_path):
    for block in blocks_of(page):
        if block.mark.startswith("excerpt: "):
            file = (ROOT / block.mark.removeprefix("excerpt: ")).read_text().splitlines()
            assert [line for line in block.code.splitlines() if line not in file] == []
        elif block.title:
            (tmp_path / block.title).write_text(block.code)
        elif block.language == "python":
            forks.python([block.code], tmp_path)
        elif block.language == "sh" and not block.mark.startswith("not run: "):
            forks.shell(block.code, tmp_path)


@cache
def help_of(command):
    return run([sys.executable, "-c", "from coreplay.cli import main; main()", *command, "--help"], ROOT)


@pytest.mark.parametrize("block", list(blocks("sh")))
def test_shell_block_names_real_commands(block):
    for line in block.code.splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["coreplay"]:
            shown = help_of(tuple(words[1:3] if words[1] in ("data", "flower") else words[1:2]))
            options = [word for word in words if word.startswith("--")]
            assert all(option in shown for option in options), line
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), line


@pytest.mark.parametrize("block", list(blocks("toml")))
def test_toml_block_is_a_configuration(block):
    data = tomllib.loads(block.code)
    if "plugins" in data:
        return  # the files are there only when somebody walks through the page
    Sweep.make(data) if "strategies" in data else Config.make(data)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_tests_that_pages_name_exist():
    known = {name for file in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert named
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_are_lists_on_the_site_too(page):
    prose = re.sub("```.*?```", "", page.read_text(), flags=re.DOTALL)
    run_on = re.findall(r"^(?![ ]*[-*] |[ ]*\d+\. |[ ]|$).+\n[ ]*(?:[-*]|\d+\.) .*", prose, re.M)
    assert run_on == [], "mkdocs wants an empty line before a list"


@pytest.mark.parametrize("records", sorted(ROOT.glob("docs/results/*/runs.zip")), ids=lambda file: file.parent.name)
def test_tables_of_results_are_what_the_records_of_the_runs_give(records, tmp_path):
    """And the plan in the repository takes these runs for its own, so that it goes on from them."""
    run([sys.executable, "-m", "benchmarks.records", "unpack", str(records), str(tmp_path)], ROOT)
    found, left = load_runs([tmp_path / "runs"])
    (group,) = group_runs(found)
    assert left == []
    for table in (tables.results(group), tables.differences(group)):
        assert table.markdown() == (records.parent / f"{table.name}.md").read_text()
    planned = {plan.name: plan.config for plan in Sweep.load(PLANS / f"{records.parent.name}.toml").runs}
    for one in found:
        assert planned[one.run.folder.name].model_copy(update={"engine": one.config.engine}) == one.config
    again = tmp_path / "again.zip"
    run([sys.executable, "-m", "benchmarks.records", "pack", str(tmp_path), str(again)], ROOT)
    assert again.read_bytes() == records.read_bytes()


def documented(docstring):
    """Return the names before the texts of a docstring's parameters and attributes, section by section."""
    for title, body in re.findall(r"^(Parameters|Attributes)\n-+\n(.*?)(?=\n\n\S|\Z)", docstring, re.M | re.DOTALL):
        yield title, [line.partition(" :")[0].strip() for line in body.splitlines() if re.match(r"\S", line)]


def parameters_of(node):
    """Return the parameters of a function or of a class, without `self`; None if the class inherits its own."""
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        if made:
            return parameters_of(made[0])
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.dump(one)]
        names = [one.target.id for one in fields]
        return names if any("dataclass" in ast.dump(one) for one in node.decorator_list) else None
    stars = [f"{star}{one.arg}" for star, one in (("*", node.args.vararg), ("**", node.args.kwarg)) if one]
    given = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return [name for name in given if name not in ("self", "cls")] + stars


def fields_of(file, name):
    """Return the fields of a dataclass, inherited ones too."""
    module = importlib.import_module(".".join(file.relative_to(ROOT / "src").with_suffix("").parts))
    return [field.name for field in dataclasses.fields(getattr(module, name))]


@pytest.mark.parametrize("file", sorted((ROOT / "src").glob("**/*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_parameters_are_documented_each_by_itself(file):
    """The reference shows one default per entry: several names in one entry would all get that of the first."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for title, names in documented(ast.get_docstring(node) or ""):
                grouped = [name for name in names if not re.fullmatch(r"\*{0,2}\w+", name)]
                assert grouped == [], f"{node.name}: one entry each"
                taken = parameters_of(node)
                if title == "Parameters" and taken is not None:
                    if isinstance(node, ast.ClassDef) and set(names) > set(taken):
                        taken = fields_of(file, node.name)
                    assert sorted(names) == sorted(taken), node.name


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does; a broken link or anchor is an error."""
    folder = tmp_path_factory.mktemp("site")
    run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)], ROOT)
    return folder


def test_the_site_is_whole_and_loads_nothing_from_elsewhere(site):
    fields = [name for part in Config().model_dump().values() if isinstance(part, dict) for name in part]
    configuration = (site / "reference/configuration.html").read_text()
    assert all(f"<code>{name}</code>" in configuration for name in fields)
    assert "polished" in configuration
    commands = (site / "reference/commands.html").read_text()
    assert all(f"coreplay {name}" in commands for name in ("run", "data describe", "flower up", "near-optimality"))
    assert "select(" in (site / "reference/python/selection.html").read_text()
    assert "farthest" in (site / "source/src/coreplay/selection/methods.html").read_text()
    for page in site.glob("**/*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?https?:', page.read_text())
        assert loaded == [], page


@pytest.mark.browser
@pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
def test_the_site_opened_from_the_disk_can_be_searched(site):
    with chromium() as browser:
        browser.driver.get((site / "tutorials/selector.html").as_uri())
        box = browser.driver.find_element("css selector", ".md-search__input")
        browser.run("arguments[0].focus()", box)
        box.send_keys("herding")
        until = time.monotonic() + 60
        found = "return Array.from(document.querySelectorAll('.md-search-result__link'), link => link.href)"
        while not (links := browser.run(found)):
            assert time.monotonic() < until, browser.complaints()
            time.sleep(0.1)
        pages = {link.partition("?")[0].partition("#")[0] for link in links}
        assert (site / "selection.html").as_uri() in pages
        assert all(address.startswith(("file:", "data:")) for address in browser.requests())
