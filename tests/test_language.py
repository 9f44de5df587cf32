"""The glossary: words and idioms that were replaced do not come back, in code, help texts or docs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PENDING = (  # the command line, which is being rewritten: this tuple goes with it
    *("src/coreplay/cli.py", "src/coreplay/display.py"),
    *(f"src/coreplay/{name}_commands.py" for name in ("data", "flower", "report", "run", "sweep")),
)

COUNTED = (
    "one|two|three|four|[0-9]+|all|bytes?|numbers?|rows?|values?|seconds|ms|s|steps?|samples?|rounds?|clients?|files?|"
)
COUNTED += (
    "columns?|lines?|times|once|kB|MB|kilobytes|megabytes|gradients?|loss|losses|weights?|vectors?|sums?|texts?|models?"
)
UNITS = (
    "sample|client|round|period|step|batch|core|seed|row|file|node|parameter|strategy|selection|setting|second|minute"
)
VERBS = "has|should|sends|belongs|may|is|trains|can"  # "samples a client trains on"
RETIRED = {
    r"\bLetters?\b|\b(?:[Aa]|[Tt]he|[Ee]ach|[Ee]very|[Tt]his) letters?\b(?! before)": "message, request, reply",
    r"\bcouriers?\b": "transport",
    r"\bkeepers?\b": "resident worker",
    r"\bdialogues?\b": "coordination state",
    r"\b(?:says?|said|the|a) hello\b|\bhello (?:message|answer)": "handshake",
    r"\b(?:the|its|a) roll\b": "client registry",
    r"\b(?:is|are|was|were|be|been) told\b(?! apart)|_told\b|\btold (?:by|in|of|to)\b": "reported, informed, shown",
    r"\bconductors?\b|\bconducts?\b": "run loop, trainer; run",
    r"\bSite\b|\bsites? of clients\b": "client runtime",
    r"\btalks?\b": "session",
    rf"(?<!each )(?<!which )\b(?:{COUNTED}) an? (?:{UNITS})\b(?! (?:{VERBS})\b)": "per",
    r"\bso many\b": "this number of, `n`",
    r"\banew\b|\bafresh\b": "again, from scratch",
    r"\breckon": "compute, estimate",
    r"\bof one's own\b|\b(?:in a )?(?:file|module) of (?:its|their) own\b": "own, custom, separate",
    r"\bkindly\b": "SIGTERM, gracefully",
}


def places():
    """Yield every file whose text users or contributors read."""
    for pattern in ("src/coreplay/**/*.py", "docs/**/*.md", "examples/**/*.py", "examples/**/*.md"):
        yield from sorted(ROOT.glob(pattern))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md"))


@pytest.mark.parametrize("pattern", RETIRED)
def test_retired_words_do_not_come_back(pattern):
    hits = []
    for path in places():
        name = str(path.relative_to(ROOT))
        if name.startswith(PENDING) or "/results/" in name:  # results quote what was measured then
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for hit in re.finditer(pattern, line):
                hits.append(f"{name}:{number}: {hit[0]!r} in {line.strip()[:100]!r}")
    assert not hits, f"write {RETIRED[pattern]!r} instead:\n" + "\n".join(hits)


def test_the_patterns_find_what_they_are_for():
    found = "one row a sample; 3 ms a round; so many clients; it is told by the server; a module of its own; a letter"
    assert sum(bool(re.search(pattern, found)) for pattern in RETIRED) == 5
    fine = "one row per sample; a client of a round; as many clients as there are; its own module; a message"
    assert not any(re.search(pattern, fine) for pattern in RETIRED)
