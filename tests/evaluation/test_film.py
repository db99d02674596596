"""Films of attempts."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as imageio
import pytest

from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.evaluation.film import GAP
from bilinear_wm.reporting.media import TITLE
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
            frame = imageio.imread(film, index=0)
            assert frame.shape[:2] == (TITLE + 384, panels * 384 + (panels - 1) * GAP)
            for panel in range(panels):  # each has its word above
                left = panel * (384 + GAP)
                assert frame[:TITLE, left : left + 384].min() < 100
