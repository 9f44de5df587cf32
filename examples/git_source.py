"""A source of your own: git histories. Authors are the clients, commit subjects the texts, author times the times.

    coreplay data make git --plugin git_source.py --option repositories=my/repository -o commits.parquet

Anybody with a few repositories has a real stream with real users and real times. Identities are joined on e-mail
address or full name and replaced by pseudonyms, which are keyed hashes (HMAC-SHA-256): without the salt nobody can test
a guess against them. Links, addresses and names are scrubbed from the texts.
"""

import hashlib
import hmac
import os
import re
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coreplay
from coreplay import InputError
from coreplay.data import Clients, FederatedStream, Periods, RawColumns, build_stream

_URL = re.compile(r"\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+", re.IGNORECASE)
_EMAIL = re.compile(r"<?[\w.+-]+@[\w-]+(?:\.[\w-]+)+>?")
_HANDLE = re.compile(r"(?<![\w.])@[\w-]+(?:[/.][\w-]+)*")
_WORD = re.compile(r"\w+")
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


@coreplay.source("git")
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
    if not paths:
        raise InputError("repositories must name at least one git repository: got none")
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
    raw = RawColumns(columns, lambda k: f"commit {k + 1}", {role: role for role in columns})
    return build_stream(raw, periods, clients)


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


def pseudonym(identity: str, salt: bytes) -> str:
    """Return the name that stands for an identity: always the same under one salt.

    >>> pseudonym("ann@example.org", b"salt") == pseudonym("ann@example.org", b"salt") != pseudonym("x", b"salt")
    True
    """
    return "p" + hmac.new(salt, identity.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:16]


class Scrubber:
    """Replaces links, addresses, @names and the names of known people.

    Full names go in any case. A part of a full name (a first name, a surname) goes where it is capitalised, unless the
    texts also use the word in lower case ("Will", "Mark"). A name of one word (a nickname) goes unless it is a common
    word of the texts.

    >>> texts = ["Thanks to Ann Lee, see https://x.org/1", "fix crash, reported by @bo and Lee (ann@x.org)"]
    >>> scrub = Scrubber(["Ann Lee", "Bo Ek"], texts)
    >>> [scrub(text) for text in texts]
    ['Thanks to <name>, see <url>', 'fix crash, reported by <user> and <name> (<email>)']
    """

    def __init__(self, people: Iterable[str], texts: Sequence[str]) -> None:
        counts = Counter(word for text in texts for word in set(_WORD.findall(text)))
        in_texts = Counter(word for text in texts for word in set(_WORD.findall(text.lower())))
        common = max(3, len(texts) // 1000)
        full: set[str] = set()
        parts: set[str] = set()
        for person in people:
            words = _WORD.findall(person)
            if len(words) > 1:
                full.add(r"[\W_]+".join(map(re.escape, words)))
                parts |= {w.capitalize() for w in words if len(w) >= 3 and not counts[w.lower()]}
            elif words and len(words[0]) >= 3 and in_texts[words[0].lower()] <= common:
                full.add(re.escape(words[0]))
        self._full = _any(full, re.IGNORECASE)
        self._parts = _any({re.escape(part) for part in parts if counts[part]}, re.NOFLAG)

    def __call__(self, text: str) -> str:
        """Return the text without what could name somebody."""
        text = _HANDLE.sub("<user>", _EMAIL.sub("<email>", _URL.sub("<url>", text)))
        return self._parts.sub("<name>", self._full.sub("<name>", text))


def _any(alternatives: set[str], flags: re.RegexFlag) -> re.Pattern[str]:
    """Return a pattern for whole words, longest first; never a placeholder, which `<` and `>` enclose."""
    if not alternatives:
        return re.compile(r"(?!)")
    ordered = sorted(alternatives, key=lambda a: (-len(a), a))
    return re.compile(rf"(?<![\w<])(?:{'|'.join(ordered)})(?![\w>])", flags)
