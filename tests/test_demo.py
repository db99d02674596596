"""The demo, from a checkpoint to the page."""

from __future__ import annotations

import re
from pathlib import Path

import imageio_ffmpeg
import pytest

from bilinear_wm.cli import main
from bilinear_wm.demo import DemoConfig, run_demo
from bilinear_wm.reporting.demo_page import CEM, OURS, RANDOM, Learned, Row, Shown
from bilinear_wm.reporting.results import rate
from tests.models.conftest import small_model


@pytest.mark.slow
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small_model("bilinear", action_mean=(0.0, 0.0), action_std=(0.5, 0.5))
    model.save_pretrained(tmp_path / "pretrained" / "tworoom")
    config = DemoConfig(
        tmp_path / "demo", tmp_path / "pretrained", episodes=2, collected=60, steps=6
    )
    for _ in range(2):  # a second run replaces the first
        numbers, page, verdict = run_demo(config, progress=False)
        printed = capsys.readouterr().out
        for head in ("== 1 of 3: ", "== 2 of 3: ", "== 3 of 3: "):
            assert head in printed
        for method in (OURS, CEM, RANDOM):
            assert re.search(rf"TwoRoom +{method} .* 2\b", printed), method
    assert numbers["tworoom, gauss-newton"]["episodes"] == numbers["tworoom, cem"]["episodes"] == 2
    ratio = numbers["times_cem"]["tworoom"]
    assert f"takes {ratio:.0f} times as long" in verdict
    films = sorted((config.out / "tworoom-videos").glob("*.mp4"))
    assert len(films) == 2
    frames, _ = imageio_ffmpeg.count_frames_and_secs(films[0])
    assert frames >= 1

    text = page.read_text()
    assert verdict in text
    assert len(re.findall("<video", text)) == sum(
        not solved for solved in _solved_at_start(config.out / "tworoom-gauss-newton.jsonl")
    )
    assert text.count("data:image/png") >= 4
    assert not re.search(r"(src|href|poster)=.?https?:", text), "not self-contained"
    assert "6 steps in" in text
    assert "What to do next" in text


def _solved_at_start(results: Path) -> list[bool]:
    from bilinear_wm.reporting.results import read_results

    return [row.solved_at_start for row in read_results(results)[1]]


def test_the_verdict_is_the_measured_ratio() -> None:
    success = rate([True])
    rows = [Row("tworoom", OURS, success, 2.0), Row("tworoom", CEM, success, 300.0),
            Row("tworoom", RANDOM, success), Row("pusht", OURS, success, 10.0),
            Row("pusht", CEM, success, 500.0)]  # fmt: skip
    shown = Shown(rows, [], Learned([], 0, success, Path()), [])
    assert shown.ratios() == {"tworoom": 150.0, "pusht": 50.0}
    assert "takes 100 times as long" in shown.verdict
    assert "50 to 150 times" in shown.verdict
    assert "2.0 to 10.0 ms" in shown.verdict


def test_the_demo_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", "--out", str(tmp_path / "o"), "--pretrained", str(tmp_path / "none")]
    assert main(arguments) == 2
    assert "expected the folders tworoom, pusht, reacher, cube" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
