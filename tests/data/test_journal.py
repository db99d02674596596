"""The journal: a file goes back to its last commit, whatever was done to it since."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bilinear_wm.data.journal import JournaledFile, begin, journal_of, restore


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_is_undone(seed: int, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(seed), tmp_path / "file"
    file = JournaledFile(path, "w+b")
    committed = b""
    for _ in range(60):
        match rng.integers(4):
            case 0:
                file.truncate(int(rng.integers(3000)))
            case 1 if rng.random() < 0.3:
                file.commit()
                committed = path.read_bytes()
            case _:
                file.seek(int(rng.integers(2000)))
                file.write(rng.bytes(int(rng.integers(500))))
    file.close()
    if seed % 2:  # as a kill leaves it: the last record cut short, nothing overwritten yet
        with journal_of(path).open("ab") as journal:
            journal.write(np.array([0, 10_000], "<i8").tobytes() + b"half")
    restore(path)
    assert path.read_bytes() == committed
    restore(path)
    assert path.read_bytes() == committed


def test_what_was_never_committed_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    begin(path)
    path.write_bytes(b"a copy that was cut short")
    restore(path)
    assert path.read_bytes() == b""


def test_a_kill_inside_a_commit_keeps_what_it_commits(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = JournaledFile(path, "w+b")
    file.write(b"all of it")
    file.close()
    os.truncate(journal_of(path), 0)
    restore(path)
    assert path.read_bytes() == b"all of it"


def test_after_a_failure_nothing_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    file = JournaledFile(path, "w+b")
    file.write(b"committed")
    file.commit()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file, "_keep", full)
        file.seek(0)
        assert file.write(b"lost") == 4  # HDF5 never hears of it
    file.write(b"lost too")
    assert path.read_bytes() == b"committed"
    with pytest.raises(OSError, match="No space left"):
        file.check()
    with pytest.raises(OSError, match="No space left"):
        file.commit()
    file.close()
