"""Files that are whole or absent: written beside the target, then moved over it in one step."""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coreplay.errors import InputError


@contextmanager
def replacing(target: Path | str, *, durable: bool = True) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes `target` only if the block ends without an error.

    The temporary file keeps the suffix of the target, because writers choose a format by it. What need not survive a
    power failure may be written faster with `durable=False`.
    """
    target = Path(target)
    temporary = target.with_name(f".writing-{secrets.token_hex(8)}{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:
        if disk_full(error):
            raise
        raise InputError(f"{str(target)!r} can't be written: {error.strerror}; choose another place") from None
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def is_half_written(name: str) -> bool:
    """Say whether a file's name is one that `replacing` gives to what it has not finished.

    >>> is_half_written(".writing-0123456789abcdef.png"), is_half_written("writing.png")
    (True, False)
    """
    return re.fullmatch(r"\.writing-[0-9a-f]{16}(\..*)?", name) is not None


def may_be_on_hub(place: Path | str) -> bool:
    """Say whether a place that is not on this machine can be a name on the Hub: NAME or OWNER/NAME.

    >>> may_be_on_hub("owner/model-1.0"), may_be_on_hub("../model"), may_be_on_hub("/srv/models/mine")
    (True, False, False)
    """
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", str(place)) is not None


@contextmanager
def alone_in(folder: Path | str) -> Iterator[None]:
    """Make sure that no other process that asks for it works in this folder at the same time; the folder is made."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if disk_full(error):
            raise
        raise InputError(f"folder {str(folder)!r} can't be made: {error.strerror}; choose another place") from None
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise InputError(f"another process is at work in {str(folder)!r}: wait until it ends") from None
    try:
        yield
    finally:
        os.close(held)


def copy(source: Path | str, target: Path | str) -> None:
    """Copy a file in one step."""
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def disk_full(error: BaseException) -> bool:
    """Say whether an error comes from a full disk; SQLite and safetensors have errors of their own for it.

    >>> disk_full(OSError(errno.ENOSPC, "No space left on device")), disk_full(OSError("no such file"))
    (True, False)
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(text in str(error) for text in ("No space left on device", "the disk is full"))


def claim(folder: Path | str, names: Iterable[str]) -> bool:
    """Check before the work that results of these names may go into a folder; return whether earlier ones are there.

    A folder that holds anything else is refused: its content would be mixed up with ours, or lost. What `replacing`
    left when it was killed is removed.
    """
    folder, ours = Path(folder), set(names)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output {str(folder)!r} is a file: choose a folder")
    entries = sorted(folder.iterdir()) if folder.exists() else []
    halves = [entry for entry in entries if is_half_written(entry.name)]
    found = [entry.name for entry in entries if entry not in halves]
    foreign = [name for name in found if name not in ours]
    if foreign:
        raise InputError(
            f"output {str(folder)!r} holds other files, such as {foreign[0]!r}: choose a new or empty folder"
        )
    for half in halves:
        half.unlink(missing_ok=True)
    return bool(found)


def write_text(target: Path | str, text: str) -> None:
    """Write a text file in one step."""
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: Path | str, data: Any) -> None:
    """Write data as readable JSON in one step."""
    write_text(target, json.dumps(data, indent=2) + "\n")


def read_json(path: Path | str) -> Any:
    """Read a JSON file, or say that it is damaged."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} can't be read as JSON: {error}") from None


def read_toml(path: Path | str, what: str) -> dict[str, Any]:
    """Read a TOML file, or say why `what` can't be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what} {str(path)!r} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {str(path)!r} is not valid TOML: {error}") from None


def read_arrays(path: Path | str) -> dict[str, Any]:
    """Read the arrays of a .npy, .npz or .safetensors file; a .npy file has one, named ''. Never unpickles.

    Raises
    ------
    InputError
        If the file is missing, of another kind, damaged, truncated, or holds Python objects.
    """
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = Path(path)
    if not path.is_file():
        raise InputError(f"file {str(path)!r} does not exist or is no file: pass a .npy, .npz or .safetensors file")
    try:
        if path.suffix == ".npy":
            return {"": np.load(path, allow_pickle=False)}
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        if path.suffix == ".safetensors":
            return dict(load_file(path))
    except MemoryError:
        raise InputError(
            f"file {str(path)!r} claims to hold more numbers than fit into memory: is it damaged?"
        ) from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, SafetensorError) as error:
        reason = "it is damaged, or holds Python objects instead of numbers" if "pickle" in str(error) else error
        raise InputError(f"file {str(path)!r} can't be read as {path.suffix[1:]}: {reason}") from None
    raise InputError(f"file {str(path)!r} has suffix {path.suffix!r}: pass a .npy, .npz or .safetensors file")
