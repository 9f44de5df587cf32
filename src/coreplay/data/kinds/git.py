"""Git histories: authors are the clients, commit subjects the texts, author times the times.

Anybody with a few repositories has a real stream with real users and real times. Identities are joined on e-mail
address or full name and replaced by pseudonyms; links, addresses and names are scrubbed from the texts.
"""

import os
import re
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreplay.data.api import source
from coreplay.data.assemble import assemble
from coreplay.data.clients import Clients
from coreplay.data.columns import Raw
from coreplay.data.periods import Periods
from coreplay.data.scrub import Scrubber, pseudonym
from coreplay.data.stream import FederatedStream
from coreplay.errors import InputError

_BOT = re.compile(r"\[bot\]|\bbot\b|-bot\b|dependabot|renovate|greenkeeper|\bci\b|jenkins|automation", re.IGNORECASE)
_NOISE = re.compile(r"^(fixup!|squash!|amend!|merge\b|revert \"?merge\b)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\((?:#|GH-|gh-)\d+\)")
_TRAILER = re.compile(r"^[A-Za-z-]+-by:\s*(.+?)\s*<", re.IGNORECASE)

# a repository's own configuration may name commands: these settings replace them, and no object is fetched
_HARMLESS = [f"core.{name}" for name in ("hooksPath=/dev/null", "fsmonitor=false", "sshCommand=false")]
_HARMLESS += ["log.showSignature=false", "mailmap.file="]
_OFFLINE = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
PATIENCE = 600  # seconds


@dataclass(frozen=True)
class Commit:
    """One commit, as git tells it."""

    seconds: int
    email: str
    name: str
    subject: str
    repository: str
    others: tuple[str, ...]


@source("git")
def git(
    *,
    repositories: Sequence[Path | str] | Path | str,
    salt: str | None = None,
    words: tuple[int, int] = (2, 40),
    periods: Periods | Mapping[str, Any] | None = None,
    clients: Clients | Mapping[str, Any] | None = None,
) -> FederatedStream:
    """Make a stream of git repositories: authors, commit subjects and times, scrubbed, under pseudonyms.

    Without a `salt` the pseudonyms are new each time and can't be traced; with one they can be made again. Merges,
    bots, fix-up commits and subjects of fewer or more words than `words` are left out.
    """
    paths = [repositories] if isinstance(repositories, str | Path) else repositories
    fit = isinstance(paths, Sequence) and all(isinstance(path, str | Path) for path in paths)
    if not fit or not paths:
        raise InputError(f"repositories must name at least one git repository: got {repositories!r}")
    if not isinstance(words, list | tuple) or [type(many) for many in words] != [int, int]:
        raise InputError(f"words must be the fewest and the most words of a subject, such as [2, 40]: got {words!r}")
    if salt == "":
        raise InputError("salt is empty, so that anybody could test guesses: give a secret text, or leave it out")
    commits = [commit for path in paths for commit in log(Path(path))]
    people = {name for c in commits for name in (c.name, *c.others)}
    commits = [c for c in commits if not _BOT.search(f"{c.name} {c.email}") and not _NOISE.match(c.subject)]
    owner = identities(commits)
    key = secrets.token_bytes(32) if salt is None else salt.encode()
    scrub = Scrubber(people, [c.subject for c in commits])
    columns: dict[str, list[Any]] = {role: [] for role in ("client", "text", "label", "timestamp")}
    for commit in commits:
        text = " ".join(_NUMBER.sub("", scrub(commit.subject)).split())
        if words[0] <= len(text.split()) <= words[1]:
            row = (pseudonym(owner[commit.email], key), text, commit.repository, commit.seconds)
            for values, value in zip(columns.values(), row, strict=True):
                values.append(value)
    if not columns["text"]:
        raise InputError(f"no usable commit in {', '.join(map(str, paths))}: all are merges, bots or of too few words")
    raw = Raw(columns, lambda k: f"commit {k + 1}", {role: role for role in columns})
    return assemble(raw, periods, clients)


def log(path: Path) -> list[Commit]:
    """Read the history of one repository, oldest last, with names joined as its .mailmap says.

    The repository may be a stranger's, and its configuration may name commands: none of them is run, and nothing is
    fetched.
    """
    shape = "%at%x1f%aE%x1f%aN%x1f%cN%x1f%s%x1f%b"
    command = ["git", "--no-pager", "-C", str(path)]
    command += [part for setting in _HARMLESS for part in ("-c", setting)]
    command += ["log", "--no-patch", "--no-ext-diff", "--no-textconv", "--no-notes"]
    command += ["--no-merges", "--use-mailmap", "--no-color", "-z", "--encoding=UTF-8", f"--format={shape}"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=os.environ | _OFFLINE,
            timeout=PATIENCE,
        )
    except FileNotFoundError:
        raise InputError("git is not installed: install it to read repositories") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{path}: git did not end within {PATIENCE} s: is the repository damaged?") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").splitlines() or ["it does not say why"]
        raise InputError(f"{path}: git can't read it: {next((line for line in said if 'fatal:' in line), said[0])}")
    name = path.resolve().name.removesuffix(".git")
    records = [record for record in done.stdout.decode("utf-8", "replace").split("\0") if record]
    return [_commit(record, name, f"{path}: commit {k}") for k, record in enumerate(records, 1)]


def _commit(record: str, repository: str, where: str) -> Commit:
    seconds, email, name, committer, subject, body = record.split("\x1f", 5)
    if not re.fullmatch(r"-?\d{1,18}", seconds):  # a commit that git itself would not write
        raise InputError(f"{where} has no author or no time: leave this repository out")
    named = [match[1] for line in body.splitlines() if (match := _TRAILER.match(line))]
    return Commit(int(seconds), email.lower(), name, subject, repository, (committer, *named))


def identities(commits: Sequence[Commit]) -> dict[str, str]:
    """Join people on e-mail address or on full name; return the identity (its first address) of each address."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for commit in commits:
        mail, name = root(f"mail {commit.email}"), root(f"name {' '.join(commit.name.lower().split())}")
        if len(commit.name.split()) > 1 and mail != name:  # nicknames are not unique
            parent[max(mail, name)] = min(mail, name)  # addresses sort before names
    return {commit.email: root(f"mail {commit.email}").removeprefix("mail ") for commit in commits}
