"""Files that are whole or absent: written beside the target, then moved over it in one step."""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coreplay.errors import InputError

LARGEST = 2**28  # bytes of a text file of ours


@contextmanager
def atomic_write(target: Path | str, *, durable: bool = True, private: bool = False) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes `target` only if the block ends without an error.

    `durable=False` is faster, for files that need not survive a power failure. Only the user may read a `private` file
    (samples, gradients, models) and the folders that are made for it, whatever the umask.
    """
    target = Path(target)
    temporary = target.with_name(f".writing-{secrets.token_hex(8)}{target.suffix}")
    with _usable(f"{str(target)!r} can't be written"):
        make_folder(target.parent, private=private)
        temporary.touch(mode=0o600 if private else 0o666)
    try:
        yield temporary
        if durable:
            _sync(temporary)
        temporary.replace(target)
        if durable:
            _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _usable(problem: str) -> Iterator[None]:
    """Turn an error of the operating system, except that the disk is full, into an `InputError`."""
    try:
        yield
    except OSError as error:
        if disk_full(error):
            raise
        raise InputError(f"{problem}: {error.strerror}; choose another place") from None


def _sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def make_folder(folder: Path, *, private: bool = False) -> None:
    """Make a folder and its parents, for the user alone if `private`; existing folders keep their modes."""
    for one in (*reversed(folder.parents), folder):
        one.mkdir(mode=0o700 if private else 0o777, exist_ok=True)


def is_half_written(name: str) -> bool:
    """Return whether this is the name of a temporary file of `atomic_write`.

    >>> is_half_written(".writing-0123456789abcdef.png"), is_half_written("writing.png")
    (True, False)
    """
    return re.fullmatch(r"\.writing-[0-9a-f]{16}(\..*)?", name) is not None


def sweep_halves(folder: Path | str) -> None:
    """Remove temporary files that a killed `atomic_write` left, from a folder to which nobody else writes."""
    for entry in Path(folder).iterdir():
        if is_half_written(entry.name):
            entry.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(folder: Path | str) -> Iterator[None]:
    """Make the folder and lock it against other processes that lock it."""
    with _usable(f"folder {str(folder)!r} can't be made"):
        make_folder(Path(folder))
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process is at work in {str(folder)!r}: wait until it ends") from None
        sweep_halves(folder)
        yield
    finally:
        os.close(held)


def copy(source: Path | str, target: Path | str, *, private: bool = False) -> None:
    """Copy a file in one step."""
    with atomic_write(target, private=private) as temporary:
        shutil.copyfile(source, temporary)


def disk_full(error: BaseException) -> bool:
    """Return whether an error comes from a full disk; SQLite and safetensors have their own errors for it.

    >>> disk_full(OSError(errno.ENOSPC, "No space left on device")), disk_full(OSError("no such file"))
    (True, False)
    """
    known = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return known or any(text in str(error) for text in ("No space left on device", "the disk is full"))


def check_output_dir(folder: Path | str, names: Iterable[str]) -> bool:
    """Refuse a folder that holds anything but results of these names; return whether it holds earlier ones."""
    folder = Path(folder)
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise InputError(f"output {str(folder)!r} is a file: choose a folder")
    found = {entry.name for entry in folder.iterdir() if not is_half_written(entry.name)}
    if foreign := sorted(found.difference(names)):
        raise InputError(
            f"output {str(folder)!r} holds other files, such as {foreign[0]!r}: choose a new or empty folder"
        )
    sweep_halves(folder)
    return bool(found)


def write_text(target: Path | str, text: str) -> None:
    """Write a text file in one step."""
    with atomic_write(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: Path | str, data: Any) -> None:
    """Write data as readable JSON in one step."""
    write_text(target, json.dumps(data, indent=2) + "\n")


@contextmanager
def reading(path: Path | str, kind: str, what: str = "file") -> Iterator[None]:
    """Turn every error of the block, which reads a file, into an `InputError` of one line that names the file.

    Anything but a regular file is refused before, because reading a pipe may never end.
    """
    try:
        if not Path(path).is_file():
            raise InputError(f"{what} {str(path)!r} does not exist or is no file")
        yield
    except Exception as error:
        if isinstance(error, InputError) and str(path) in str(error):
            raise
        raise InputError(f"{what} {str(path)!r} can't be read as {kind}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return in one line why a file can't be read."""
    if isinstance(error, MemoryError):
        return "it claims to hold more numbers than fit into memory: is it damaged?"
    said = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), "")
    return said if said and isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {said}"


def read_text(path: Path | str, kind: str = "text", what: str = "file") -> str:
    """Read a text file of at most `LARGEST` bytes."""
    with reading(path, kind, what):
        size = Path(path).stat().st_size
        if size > LARGEST:
            raise InputError(f"it has {size} bytes: at most {LARGEST} are allowed")
        return Path(path).read_text(encoding="utf-8")


def read_json(path: Path | str) -> dict[str, Any]:
    """Read a JSON file that holds an object, or say that it is damaged."""
    with reading(path, "JSON"):
        return _object(read_text(path, "JSON"))


def read_json_lines(path: Path | str) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line, or say which line is damaged."""
    rows = []
    for number, line in enumerate(read_text(path, "JSON lines").splitlines(), 1):
        with reading(path, f"JSON in line {number}"):
            rows.append(_object(line))
    return rows


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"it must be an object with names, not a {type(found).__name__}")
    return found


def read_toml(path: Path | str, what: str) -> dict[str, Any]:
    """Read a TOML file, or say why `what` can't be read."""
    with reading(path, "TOML", what):
        return tomllib.loads(read_text(path, "TOML", what))


def read_arrays(path: Path | str) -> dict[str, Any]:
    """Read the arrays of a .npy, .npz or .safetensors file; a .npy file has one, named ''. Never unpickles."""
    import numpy as np
    from safetensors.numpy import load_file

    path = Path(path)
    with reading(path, path.suffix[1:]):
        if path.suffix not in (".npy", ".npz", ".safetensors"):
            raise InputError(f"file {str(path)!r} has suffix {path.suffix!r}: pass a .npy, .npz or .safetensors file")
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        try:
            with path.open("rb") as file:  # numpy would leave a broken one open
                found = np.load(file, allow_pickle=False)
                return {"": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
        except ValueError as error:
            if "pickle" in str(error):
                raise ValueError("it is damaged, or holds Python objects instead of numbers") from None
            raise
