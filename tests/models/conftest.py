"""Small models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bilinear_wm.models import MODELS
from bilinear_wm.models.base import WorldModel

SMALL: dict[str, Any] = {
    "task": "tworoom",
    "image_size": 32,
    "frame_skip": 5,
    "action_mean": (0.1, -0.2),
    "action_std": (0.5, 2.0),
    "latent_size": 24,
    "width": 32,
    "depth": 1,
    "heads": 2,
    "projector_hidden": 48,
}


def small_model(kind: str, seed: int = 0, **options: Any) -> WorldModel:
    torch.manual_seed(seed)
    cls = MODELS[kind]
    return cls(cls.config_class(**(SMALL | options)))


def windows(count: int = 6, frames: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, frames, 32, 32, 3), generator=generator)
    return pixels.to(torch.uint8), torch.randn(count, frames - 1, 10, generator=generator)


@pytest.fixture(params=sorted(MODELS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
