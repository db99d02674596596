"""What turns pictures into latents: one file a kind."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from bilinear_wm.models.config import ModelConfig
from bilinear_wm.models.encoders.points import PointsEncoder
from bilinear_wm.models.encoders.vit import VisionTransformer

ENCODERS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "points": PointsEncoder,
    "vit": VisionTransformer,
}


def make_encoder(config: ModelConfig) -> nn.Module:
    """A fresh encoder of the kind that the configuration names."""
    return ENCODERS[config.encoder](config)
