"""Latents of whole files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bilinear_wm.analysis.latents import calibrate
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.models import load_model
from bilinear_wm.training.train import train
from tests.training.conftest import (
    small,
)


@pytest.mark.slow
def test_calibration_depends_on_weights_and_data_alone(tworoom_file: Path, tmp_path: Path) -> None:
    train(small(tworoom_file, tmp_path / "run"), progress=False)
    data = EpisodeDataset(tworoom_file, 3)
    model = load_model(tmp_path / "run")
    before = model.encode(data.batch([0, 1]).pixels)
    for norm in model.batch_norms():
        norm.get_buffer("running_mean").add_(5.0)
        norm.get_buffer("num_batches_tracked").add_(100)
    calibrate(model, data, 8)
    torch.testing.assert_close(model.encode(data.batch([0, 1]).pixels), before)
