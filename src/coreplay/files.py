"""Files that are whole or absent: written beside the target, then moved over it in one step."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path | str) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes `target` only if the block ends without an error.

    The temporary file keeps the suffix of the target, because writers choose a format by it.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".writing-{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(target: Path | str, text: str) -> None:
    """Write a text file in one step."""
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
