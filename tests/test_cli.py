"""The command line, as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import imageio.v3 as imageio
import imageio_ffmpeg
import pytest

from bilinear_wm.cli import main
from bilinear_wm.demo import DemoConfig, run_demo
from tests.models.conftest import small_model


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


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small_model("bilinear", action_mean=(0.0, 0.0), action_std=(0.5, 0.5))
    model.save_pretrained(tmp_path / "pretrained" / "tworoom")
    config = DemoConfig(
        tmp_path / "demo",
        tmp_path / "pretrained",
        episodes=3,
        cem_episodes=1,
        collected=60,
        steps=4,
    )
    for _ in range(2):  # a second run replaces the first
        numbers, files = run_demo(config, progress=False)
        printed = capsys.readouterr().out
        assert "tworoom, pretrained, gauss-newton" in printed
        assert "4 steps from nothing" in printed
        assert all(file.exists() for file in files)
    assert numbers["tworoom, pretrained, gauss-newton"]["episodes"] == 3
    films = sorted((config.out / "tworoom-videos").glob("*.mp4"))
    assert len(films) == 3
    frames, _ = imageio_ffmpeg.count_frames_and_secs(films[0])
    assert frames >= 1


def test_the_demo_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", "--out", str(tmp_path / "o"), "--pretrained", str(tmp_path / "none")]
    assert main(arguments) == 2
    assert "expected the folders tworoom, pusht" in capsys.readouterr().err
