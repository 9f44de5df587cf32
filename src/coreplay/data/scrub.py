"""Scrubbing: links, e-mail addresses, @names and people's names out of texts; pseudonyms for people.

A pseudonym is a keyed hash (HMAC-SHA-256) of an identity: without the salt nobody can test a guess against it.
"""

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable, Sequence

_URL = re.compile(r"\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+", re.IGNORECASE)
_EMAIL = re.compile(r"<?[\w.+-]+@[\w-]+(?:\.[\w-]+)+>?")
_HANDLE = re.compile(r"(?<![\w.])@[\w-]+(?:[/.][\w-]+)*")
_WORD = re.compile(r"\w+")


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
