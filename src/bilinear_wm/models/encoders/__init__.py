"""What turns pictures into latents: one file a kind."""

from __future__ import annotations

from torch import nn

from bilinear_wm.models.config import ModelConfig
from bilinear_wm.registry import ENCODERS


def make_encoder(config: ModelConfig) -> nn.Module:
    """A fresh encoder of the kind that the configuration names."""
    return ENCODERS[config.encoder](config)
