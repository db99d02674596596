"""Small models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bilinear_wm.models import MODELS
from bilinear_wm.models.base import WorldModel
from bilinear_wm.models.config import ModelConfig

SMALL: dict[str, Any] = {
    "task": "tworoom",
    "image_size": 32,
    "frame_skip": 5,
    "action_mean": (0.1, -0.2),
    "action_std": (0.5, 2.0),
    "projector_hidden": 48,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "points": {"num_points": 12, "grid": 8, "channels": 16, "drawing_weight": 2.0,
               "shift_weight": 0.5},
    "vit": {"projector_size": 24, "patch_size": 8, "width": 32, "depth": 1, "heads": 2,
            "stem": "conv"},
}  # fmt: skip
"""Two small encoders, both with a latent of 24 numbers."""


def small_model(kind: str, seed: int = 0, encoder: str = "vit", **options: Any) -> WorldModel:
    torch.manual_seed(seed)
    cls = MODELS[kind]
    made = SMALL | {"encoder": encoder} | ENCODERS[encoder] | options
    return cls(cls.config_class(**made))


def windows(count: int = 6, frames: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, frames, 32, 32, 3), generator=generator)
    return pixels.to(torch.uint8), torch.randn(count, frames - 1, 10, generator=generator)


@pytest.fixture(params=sorted(MODELS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=sorted(ENCODERS))
def encoder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def points_config(**options: Any) -> ModelConfig:
    facts: dict[str, Any] = {"num_points": 4, "grid": 8, "channels": 16} | options
    return ModelConfig("t", 32, 5, (0.0,), (1.0,), **facts)
