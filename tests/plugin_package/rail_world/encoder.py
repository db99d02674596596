"""Brightness of columns and rows, mixed linearly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bilinear_wm.models.config import ModelConfig


class ColumnsEncoder(nn.Module):
    """uint8 pictures (..., H, W, 3) to latents (..., latent_size)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mix = nn.Linear(2 * config.image_size, config.latent_size)

    def forward(self, pixels: Tensor) -> Tensor:
        grey = pixels.float().mean(-1) / 255
        latent: Tensor = self.mix(torch.cat([grey.mean(-1), grey.mean(-2)], dim=-1))
        return latent
