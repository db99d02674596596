"""The demo, from a checkpoint to films."""

from __future__ import annotations

from pathlib import Path

import imageio_ffmpeg
import pytest

from bilinear_wm.cli import main
from bilinear_wm.demo import DemoConfig, run_demo
from tests.models.conftest import small_model


@pytest.mark.slow
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
