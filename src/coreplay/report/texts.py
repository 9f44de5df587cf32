"""Texts from outside (clients, options, paths, samples) made harmless for every place in which they are shown."""

import html
import json
import math
import textwrap
import unicodedata
from collections.abc import Iterable
from typing import Any

_SEPARATORS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def clean(text: object) -> str:
    r"""Return a text on one line without control characters, marks of direction and halves of surrogate pairs.

    >>> clean("play\n\x00jazz \u202egnp.exe")
    'play ?jazz ?gnp.exe'
    """
    kept = []
    for letter in str(text):
        if letter in "\t\n\r\x0b\x0c\x85\u2028\u2029":
            kept.append(" ")
        else:
            kept.append("?" if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Cn", "Co") else letter)
    return "".join(kept)


def counted(number: int, thing: str) -> str:
    """Return a number with what it counts.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def column(values: Iterable[float | None], digits: int = 4) -> list[str]:
    """Return the numbers of a column with as many decimals as give the largest one so many digits.

    >>> column([297.31, 9.6234, None]), column([0.84051, -0.01]), column([12345.6], digits=3)
    (['297.3', '9.6', '–'], ['0.8405', '-0.0100'], ['12346'])
    """
    numbers = list(values)
    places = decimals(numbers, digits)
    return ["–" if v is None else f"{v:.{places}f}" for v in numbers]


def decimals(values: Iterable[float | None], digits: int) -> int:
    """Return with how many decimals the largest of some numbers has so many digits.

    >>> decimals([297.31, 9.6, None], 4), decimals([0.084], 3), decimals([], 3)
    (1, 4, 0)
    """
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    return max(digits - 1 - math.floor(math.log10(largest)), 0) if largest else 0


def escaped(text: object) -> str:
    """Return a text for HTML, in content and in quoted attributes; plotly's labels understand the same.

    >>> escaped("</script><img onerror='x'>")
    '&lt;/script&gt;&lt;img onerror=&#x27;x&#x27;&gt;'
    """
    return html.escape(clean(text), quote=True)


def label(text: object) -> str:
    """Return a text for a label of plotly, which interprets tags and decodes a few entities.

    >>> label("a<b>&c'")
    "a&lt;b&gt;&amp;c'"
    """
    return html.escape(clean(text), quote=False)


def wrapped(text: str, width: int = 50, most: int = 300) -> str:
    """Return a long text as lines of a plotly label."""
    short = text if len(text) <= most else text[:most] + " …"
    return "<br>".join(label(line) for line in textwrap.wrap(clean(short), width)) or "(empty)"


def embedded(data: Any) -> str:
    r"""Return JSON that can stand inside a script element: nothing in it can end the element or begin another.

    >>> embedded({"name": "</script>", "value": float("nan")})
    '{"name":"\\u003c/script\\u003e","value":null}'
    """
    text = json.dumps(_plain(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for sign, code in _SEPARATORS.items():
        text = text.replace(sign, code)
    return text


def _plain(data: Any) -> Any:
    """Replace numbers that JSON does not have."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return data
