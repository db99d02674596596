"""Films of attempts."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as imageio
import pytest

from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from tests.models.conftest import small_model


@pytest.mark.slow
def test_videos_are_written(checkpoint: Path, tmp_path: Path) -> None:
    """Now and goal; between them, from a model that draws, what the plan expects."""
    drawing = small_model(
        "bilinear", encoder="points", action_mean=(0.0, 0.0), action_std=(0.5, 0.5)
    )
    drawing.save_pretrained(tmp_path / "draws")
    for model, panels in ((checkpoint, 2), (tmp_path / "draws", 3)):
        folder = tmp_path / f"films-{panels}"
        config = EvaluateConfig("tworoom", model, episodes=2, floors=False, video=folder)
        evaluate(config, progress=False)
        films = sorted(folder.glob("*.mp4"))
        assert len(films) == 2
        for film in films:
            height, width = imageio.imread(film, index=0).shape[:2]
            assert width / height == pytest.approx(panels, abs=0.2)
