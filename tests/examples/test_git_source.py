"""Git histories that the test makes, with names, links and addresses in them that must not come out."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coreplay import registry
from coreplay.data import load, save
from coreplay.errors import InputError
from coreplay.plugins import load_plugins

SOURCE = Path(__file__).parents[2] / "examples" / "git_source.py"
load_plugins([str(SOURCE)])
git_source = sys.modules[registry.own["source", "git"]]
Scrubber, pseudonym = git_source.Scrubber, git_source.pseudonym

COMMITS = [
    ("Ann Lee", "ann@example.org", "Add the parser for dates (#12)"),
    ("Ann Lee", "ann@work.example", "Fix crash, see https://example.org/issue/3 and www.example.org/x"),
    ("Bo Ek", "bo@example.org", "Apply the patch of Ann Lee, thanks to @annlee"),
    ("Bo Ek", "BO@example.org", "Mail ann@example.org or Lee about the release"),
    ("renovate[bot]", "bot@example.org", "Update everything to the newest"),
    ("Bo Ek", "bo@example.org", "fixup! Apply the patch"),
    ("Will Marks", "will@example.org", "Will this mark the end? It will, says Cy Dahl"),
    ("Will Marks", "will@example.org", "oneword"),
]


def git(folder, *arguments, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"} | more
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=environment)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repos") / "tool"
    folder.mkdir()
    git(folder, "init", "-q")
    for k, (name, mail, subject) in enumerate(COMMITS * 5):
        when = datetime.fromtimestamp(1_600_000_000 + k * 86_400, tz=UTC).isoformat()
        who = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": mail, "GIT_AUTHOR_DATE": when}
        who |= {"GIT_COMMITTER_NAME": "Cy Dahl", "GIT_COMMITTER_EMAIL": "cy@example.org", "GIT_COMMITTER_DATE": when}
        git(
            folder, "commit", "-q", "--allow-empty", "-m", f"{subject}\n\nReported-by: Dee Fox <dee@example.org>", **who
        )
    return folder


def test_authors_are_clients_and_nobody_is_named(repository, tmp_path):
    stream = load("git", repositories=repository, salt="s", periods={"days": 10, "number": 4})
    assert len(stream.clients) == 3  # Ann's two addresses are one person, the bot is none
    assert stream.label_names == ("tool",)
    assert stream.periods == 4
    texts = set(stream.all().texts)
    assert texts == {
        "Add the parser for dates",
        "Fix crash, see <url> and <url>",
        "Apply the patch of <name>, thanks to <user>",
        "Mail <email> or <name> about the release",
        "Will this mark the end? It will, says <name>",
    }
    save(stream, tmp_path / "s.parquet")
    written = (tmp_path / "s.parquet").read_bytes()
    for word in (b"Ann", b"Lee", b"Dahl", b"example.org", b"Bo Ek"):
        assert word not in written


def test_the_command_line_knows_the_source(repository, tmp_path):
    out = tmp_path / "s.parquet"
    command = [sys.executable, "-m", "coreplay", "data", "make", "git", "--plugin", SOURCE, "-o", out, "--json"]
    command += ["--option", f"repositories={repository}", "--option", "periods.days=10", "--option", "periods.number=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["periods"] == 4
    assert len(load("files", path=out).clients) == 3


def test_pseudonyms_can_be_made_again_only_with_the_salt(repository):
    first, again = (load("git", repositories=[repository], salt="s").clients for _ in range(2))
    other, random = (
        load("git", repositories=[repository], salt="t").clients,
        load("git", repositories=[repository]).clients,
    )
    assert first == again
    assert not set(first) & set(other)
    assert not set(first) & set(random)
    assert pseudonym("ann@example.org", b"s") in first


def test_options_are_checked():
    for wrong, message in (
        ({"repositories": 5}, "'repositories' .*: got 5: must be a path or"),
        ({"repositories": [5]}, "'repositories' .*: must be a string"),
        ({"repositories": ".", "words": 5}, "'words' .*: got 5: must be a list"),
        ({"repositories": ".", "words": [2]}, "'words' .*: must be a longer list"),
        ({"repositories": ".", "salt": ""}, "salt is empty"),
    ):
        with pytest.raises(InputError, match=message):
            load("git", **wrong)


def test_what_is_no_repository_is_named(tmp_path, repository):
    with pytest.raises(InputError, match="git can't read it"):
        load("git", repositories=[tmp_path / "none"])
    with pytest.raises(InputError, match="at least one git repository"):
        load("git", repositories=[])
    with pytest.raises(InputError, match="no usable commit"):
        load("git", repositories=[repository], words=(30, 40))


def test_names_that_are_words_stay():
    texts = ["will do", "Will does", "ask Zed", "ask zed", *["run the test"] * 9]
    scrub = Scrubber(["Will Zed", "test", "nick77"], [*texts, "by nick77"])
    assert [scrub(text) for text in ("Will does", "ask will zed", "run the test", "by Nick77")] == [
        "Will does",
        "ask <name>",
        "run the test",
        "by <name>",
    ]


def trap(folder, marker):
    """Make a repository whose own configuration runs a command wherever git reads one; a commit is missing."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    git(folder, "config", "user.name", "Ann Lee")
    git(folder, "config", "user.email", "ann@example.org")
    (folder / "file.txt").write_text("one\n")
    (folder / ".gitattributes").write_text("*.txt diff=trap filter=trap\n")
    for k in range(4):
        (folder / "file.txt").write_text(f"line {k}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"Write part {k} of it")
    script = folder / "trap.sh"
    script.write_text(f'#!/bin/sh\ntouch "{marker}"\n')
    script.chmod(0o755)
    for hook in ("post-index-change", "reference-transaction", "pre-auto-gc"):
        (folder / ".git/hooks").mkdir(exist_ok=True)
        shutil.copy(script, folder / ".git/hooks" / hook)
    commands = ("core.sshCommand", "core.fsmonitor", "core.pager", "core.gitProxy", "core.askPass", "core.editor")
    commands += ("diff.external", "diff.trap.textconv", "diff.trap.command", "filter.trap.clean", "filter.trap.smudge")
    commands += ("gpg.program", "credential.helper", "pager.log", "core.alternateRefsCommand", "alias.log")
    for name in commands:
        git(folder, "config", name, str(script))
    more = {"log.showSignature": "true", "log.diffMerges": "on", "extensions.partialClone": "origin"}
    more |= {
        "remote.origin.promisor": "true",
        "remote.origin.uploadpack": str(script),
        "core.repositoryFormatVersion": "1",
    }
    for name, value in more.items():
        git(folder, "config", name, value)
    return script


def lose_a_commit(folder):
    show = ["git", "-C", str(folder), "-c", "log.showSignature=false", "rev-parse", "HEAD~2"]
    name = subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip()
    (folder / ".git/objects" / name[:2] / name[2:]).unlink()


@pytest.mark.parametrize("transport", ["ssh", "file", "ext", "helper"])
@pytest.mark.parametrize("missing", [True, False])
def test_nothing_of_a_repository_is_run(tmp_path, transport, missing):
    marker, folder = tmp_path / "marker", tmp_path / "evil"
    script = trap(folder, marker)
    urls = {"ssh": "ssh://host/x", "file": f"file://{folder}", "ext": f"ext::{script}", "helper": "x::y"}
    git(folder, "config", "remote.origin.url", urls[transport])
    git(folder, "config", f"protocol.{transport}.allow", "always")
    if transport == "helper":
        git(folder, "config", "remote.origin.vcs", "ext")
    if not missing:
        assert len(load("git", repositories=folder, periods={"number": 1})) == 4
    else:
        lose_a_commit(folder)
        with pytest.raises(InputError, match=r"evil: git can't read it: [^\n]*$") as caught:
            load("git", repositories=folder)
        assert "\n" not in str(caught.value)
    assert not marker.exists()


def test_a_commit_without_an_author_is_named(tmp_path, repository):
    folder = tmp_path / "odd"
    shutil.copytree(repository, folder)
    text = f"tree {'4b825dc642cb6eb9a060e54bf8d69288fbee4904'}\nauthor nobody\ncommitter nobody\n\nWrite a part\n"
    make = ["git", "-C", str(folder), "hash-object", "-t", "commit", "-w", "--stdin", "--literally"]
    name = subprocess.run(make, input=text, check=True, capture_output=True, text=True).stdout.strip()
    git(folder, "update-ref", "HEAD", name)
    with pytest.raises(InputError, match="odd: commit 1 has no author or no time"):
        load("git", repositories=folder)
