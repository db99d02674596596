"""A training folder belongs to one run at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bilinear_wm.errors import InputError
from bilinear_wm.training.train import train
from tests.training.conftest import (
    small,
)


def test_two_trainers_in_one_folder(tworoom_file: Path, tmp_path: Path) -> None:
    import fcntl

    out = tmp_path / "run"
    out.mkdir()
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another training is running there"):
            train(small(tworoom_file, out), progress=False)
