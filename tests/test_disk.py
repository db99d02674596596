"""What is written appears whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from bilinear_wm import disk
from bilinear_wm.errors import InputError


def test_replacing_keeps_the_old_folder_on_failure(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(RuntimeError), disk.replacing(target) as fresh:
        (fresh / "a").write_text("new")
        raise RuntimeError
    assert (target / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_places_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    disk.check_writable(tmp_path / "new" / "newer", "out")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    disk.check_writable(tmp_path / "file", "out")
    with pytest.raises(InputError, match=r"out .*: expected a folder, found a file"):
        disk.check_writable(tmp_path / "file" / "below", "out")


def test_read_only_folders_are_named() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o555)  # noqa: PTH101
        mine = os.geteuid()
        if mine == 0:
            os.seteuid(65534)  # nothing is read-only for root
        try:
            with pytest.raises(InputError, match=r"video .*: cannot be written: .* is read-only"):
                disk.check_writable(Path(folder) / "new", "video")
        finally:
            os.seteuid(mine)


def test_what_is_written_has_the_modes_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with disk.replacing(tmp_path / "folder") as fresh:
            (fresh / "a").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "folder" / "a").stat().st_mode & 0o777 == 0o640
