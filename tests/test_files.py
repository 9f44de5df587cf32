"""Files are whole or absent."""

import json
import os
from pathlib import Path

import pytest

from coreplay import InputError
from coreplay.files import (
    atomic_write,
    check_output_dir,
    exclusive_lock,
    read_json,
    read_json_lines,
    write_json,
    write_text,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "deep" / "table.md"
    write_text(target, "old")

    def fail():
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert target.read_text() == "old"
    assert [p.name for p in target.parent.iterdir()] == ["table.md"]


def test_json_round_trip_and_damage(tmp_path):
    write_json(tmp_path / "a.json", {"ä": [1, 2.5, None]})
    assert read_json(tmp_path / "a.json") == {"ä": [1, 2.5, None]}
    assert json.loads((tmp_path / "a.json").read_text()) == {"ä": [1, 2.5, None]}
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match=r"a\.json' can't be read as JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"a": ')  # cut off
    with pytest.raises(InputError, match=r"b\.jsonl' can't be read as JSON in line 2"):
        read_json_lines(tmp_path / "b.jsonl")


def test_a_folder_is_claimed_only_if_it_holds_nothing_else(tmp_path):
    folder = tmp_path / "out"
    assert check_output_dir(folder, ["a.json"]) is False
    write_json(folder / "a.json", 1)
    assert check_output_dir(folder, ["a.json", "b.json"]) is True
    half = folder / ".writing-0123456789abcdef.png"  # as a kill leaves it
    half.touch()
    assert check_output_dir(folder, ["a.json", "b.json"]) is True
    assert not half.exists()
    with pytest.raises(InputError, match=r"holds other files, such as 'a\.json': choose a new or empty folder"):
        check_output_dir(folder, ["b.json"])
    with pytest.raises(InputError, match="is a file: choose a folder"):
        check_output_dir(folder / "a.json", ["b.json"])


def test_a_private_file_is_for_its_user_alone(tmp_path, modes):
    with atomic_write(tmp_path / "new/deep/samples.bin", private=True) as temporary:
        assert modes(tmp_path)[str(temporary.relative_to(tmp_path))] == 0o600  # also while it is written
        temporary.write_bytes(b"play jazz")
    write_text(tmp_path / "open/table.md", "numbers")
    found = modes(tmp_path)
    del found["."]
    assert found == {
        "new": 0o700,
        "new/deep": 0o700,
        "new/deep/samples.bin": 0o600,
        "open": 0o755,
        "open/table.md": 0o644,
    }


def test_a_rename_is_on_the_disk_before_the_call_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(number):
        synced.append((str(Path(f"/proc/self/fd/{number}").readlink()), (tmp_path / "a.txt").exists()))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "a.txt", "x")
    assert len(synced) == 2
    assert synced[1] == (str(tmp_path), True)


def test_what_a_kill_left_half_written_is_swept_when_the_folder_is_taken(tmp_path):
    half, other = tmp_path / ".writing-0123456789abcdef.json", tmp_path / ".writing-notes"
    half.touch()
    other.touch()
    with exclusive_lock(tmp_path):
        assert not half.exists()
    assert other.exists()
