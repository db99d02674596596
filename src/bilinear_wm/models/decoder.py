"""From a latent back to a small picture: keeps in the latent what the picture shows."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

PICTURE_SIZE = 32
"""Height and width of the decoded pictures."""


class Decoder(nn.Module):
    """Transposed convolutions from a latent to a picture of 32 px with values in 0..1."""

    def __init__(self, latent_size: int, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(latent_size, 16 * 2 * width)
        self.layers = nn.Sequential(
            nn.GELU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.GELU(),
            nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),
            nn.GELU(),
            nn.ConvTranspose2d(width // 2, width // 4, 4, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(width // 4, 3, 3, padding=1),
        )

    def forward(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch 3 h w"]:
        x = self.first(z).reshape(-1, 2 * self.width, 4, 4)
        pictures: Tensor = self.layers(x)
        return pictures.view(*z.shape[:-1], *pictures.shape[1:])


def shrunk(pixels: UInt8[Tensor, "*batch h w 3"]) -> Float[Tensor, "*batch 3 size size"]:
    """Pictures as the decoder draws them."""
    x = pixels.reshape(-1, *pixels.shape[-3:]).permute(0, 3, 1, 2).float() / 255
    small = F.interpolate(x, size=(PICTURE_SIZE, PICTURE_SIZE), mode="area")
    return small.view(*pixels.shape[:-3], *small.shape[1:])
