"""What is written appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bilinear_wm import disk


def test_replacing_keeps_the_old_folder_on_failure(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(RuntimeError), disk.replacing(target) as fresh:
        (fresh / "a").write_text("new")
        raise RuntimeError
    assert (target / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
