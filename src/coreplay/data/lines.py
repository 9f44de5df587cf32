"""Lines of a text file, plain or gzipped, with their numbers, never holding more than one overlong line's beginning."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from coreplay.errors import InputError

LONGEST = 2**20  # bytes; a sample is a sentence or a page, not a book
_CHUNK = 2**18


def lines(path: Path, longest: int = LONGEST) -> Iterator[tuple[int, str]]:
    """Go through (line number from 1, line without its end).

    Raises
    ------
    InputError
        With file and line, if the file is missing or damaged, is not UTF-8, or has a line of more than `longest` bytes.
    """
    number = 0
    try:
        with _opened(path) as stream:
            for number, raw in _split(stream, path, longest):
                try:
                    yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{path}:{number}:{error.start + 1}: byte {raw[error.start]:#04x} is not UTF-8: "
                        "convert the file to UTF-8"
                    ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}:{number + 1}: can't be read: {error}") from None


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def _split(stream: BinaryIO, path: Path, longest: int) -> Iterator[tuple[int, bytes]]:
    pending, number = b"", 0
    while chunk := stream.read(_CHUNK):
        *whole, pending = (pending + chunk).split(b"\n")
        for line in whole:
            number += 1
            _check(line, number, path, longest)
            yield number, line.removesuffix(b"\r")
        _check(pending, number + 1, path, longest)
    if pending:
        yield number + 1, pending.removesuffix(b"\r")


def _check(line: bytes, number: int, path: Path, longest: int) -> None:
    if len(line) > longest:
        raise InputError(
            f"{path}:{number}: the line is longer than {longest} bytes: is this one sample a line? (longest_line=)"
        )
