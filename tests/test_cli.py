"""The command line, as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import imageio.v3 as imageio
import pytest

from bilinear_wm.cli import main


def test_collect_and_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.h5"
    command = ["collect", "tworoom", "--episodes", "12", "--image-size", "32", "--out", str(out)]
    assert main([*command, "--workers", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result["episodes"] == result["new_episodes"] == 12

    assert main(["inspect", str(out), "--json"]) == 0
    printed = capsys.readouterr().out.strip().splitlines()
    summary = json.loads(printed[-1])
    assert summary["episodes"] == 12
    assert 0 <= summary["solved_share"]["25"] < 0.3
    assert any("solved before the start" in line for line in printed)
    assert imageio.imread(out.with_suffix(".png")).shape == (8 * 34, 12 * 34, 3)


def test_errors_are_one_line(tmp_path: Path) -> None:
    for arguments in (
        ["inspect", str(tmp_path / "none.h5")],
        ["collect", "nosuch", "--out", str(tmp_path / "a.h5")],
    ):
        result = subprocess.run(
            [sys.executable, "-m", "bilinear_wm.cli", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 2
        assert len(result.stderr.strip().splitlines()) == 1
        assert result.stderr.startswith("bwm: ")
