"""The drawing anchor: latents must say enough to draw the picture from. Ours; the paper has none.

Neither term of the paper's objective asks for anything but what actions move at once. Here a small
local decoder must draw each picture from its points: every point becomes a Gaussian on a grid,
and three convolutions with a small view turn these maps into pixels, added to the mean picture.
A local decoder can only draw a thing near the points that belong to it, so points go to things.
Two details decide:

- *Noise on the points* before drawing. Without it, information hides in displacements of a
  hundredth of a pixel, which no planner can use.
- *Errors weighted by motion*, 1 + w |change to the neighbouring picture|, so that a small thing
  that moves counts as much as a large one that stays.

Where what matters is a handful of pixels (Cube's cube), a plain sum over pixels spends every point
on the rest. `drawing_focus` below 1 counts the hardest pixels of each picture, that share of them,
and a tenth of all.

The error is told as a share of what the mean picture misses, so that it means the same in every
task. The decoder stays in the checkpoint and draws what plans expect.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from bilinear_wm.models.config import ModelConfig
from bilinear_wm.models.encoders.points import (
    as_maps,
    cells,
    channels_last,
    convolution,
    grid_shape,
)

NOISE = 0.24
"""Standard deviation added to the points, in cells of the grid."""
REST = 0.1
"""How much all pixels count beside the hardest ones."""
WIDTH = 1.2
"""Of the Gaussians, in cells of the grid."""
MOTION = 4.0
"""How much more a pixel counts that changes by a quarter of the range or more."""
CHANNELS = 32


class Drawing(nn.Module):
    """Points (..., K, 2) to pictures."""

    mean: Tensor
    noise: Tensor
    at_x: Tensor
    at_y: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        down, across = grid_shape(config)
        factor = config.image_size // down
        self.decoder = nn.Sequential(
            *convolution(config.num_points + 2, CHANNELS, 3),
            *convolution(CHANNELS, CHANNELS, 3),
            nn.Conv2d(CHANNELS, 3 * factor**2, 3, padding=1),
            nn.PixelShuffle(factor),
        )
        channels_last(self)
        self.focus = config.drawing_focus
        noise = torch.tensor([2 * NOISE / across, 2 * NOISE / down])
        self.register_buffer("noise", noise, persistent=False)
        self.register_buffer("at_x", cells(across), persistent=False)
        self.register_buffer("at_y", cells(down), persistent=False)
        self.register_buffer("mean", torch.zeros(3, *config.picture_shape))

    @torch.no_grad()
    def prepare(self, pixels: UInt8[Tensor, "pictures h w 3"]) -> None:
        """Take the mean picture."""
        self.mean.copy_(as_maps(pixels).mean(0))

    def forward(self, points: Float[Tensor, "n k 2"]) -> Float[Tensor, "n 3 h w"]:
        """Pictures with values in [-2, 2]."""
        x, y = points.unsqueeze(-1).unbind(-2)
        spots = near(y, self.at_y).unsqueeze(-1) * near(x, self.at_x).unsqueeze(-2)
        place = torch.stack(torch.meshgrid(self.at_x, self.at_y, indexing="xy"))
        maps = torch.cat([spots, place.expand(len(spots), *place.shape)], dim=1)
        drawn: Tensor = self.decoder(maps)
        return drawn + self.mean

    def error(
        self,
        points: Float[Tensor, "batch frames k 2"],
        pixels: UInt8[Tensor, "batch frames h w 3"],
    ) -> Float[Tensor, ""]:
        """Weighted squared error of the drawn windows, over that of the mean picture."""
        noised = points + self.noise * torch.randn_like(points)
        drawn, wanted = self(noised.flatten(0, 1)), as_maps(pixels.flatten(0, 1))
        weight = 1 + MOTION * motion(wanted.unflatten(0, pixels.shape[:2])).flatten(0, 1)
        missed = self._total(weight * (wanted - self.mean).square())
        return self._total(weight * (drawn - wanted).square()) / missed.clamp_min(1e-6)

    def _total(self, error: Float[Tensor, "n 3 h w"]) -> Float[Tensor, ""]:
        """Of all pixels, or of the hardest and a tenth of all."""
        if self.focus == 1:
            return error.mean()
        pixels = error.mean(1).flatten(1)
        hardest = pixels.topk(max(round(self.focus * pixels.shape[1]), 1), sorted=False).values
        return self.focus * hardest.mean() + REST * pixels.mean()

    @torch.no_grad()
    def draw(self, points: Float[Tensor, "*batch k 2"]) -> UInt8[Tensor, "*batch h w 3"]:
        """Pictures of points."""
        drawn = self(points.flatten(0, -3)).permute(0, 2, 3, 1)
        pictures = ((drawn + 2) * (255 / 4)).round().clamp(0, 255).to(torch.uint8)
        return pictures.view(*points.shape[:-2], *pictures.shape[1:])


def near(x: Float[Tensor, "n k 1"], at: Float[Tensor, " cells"]) -> Float[Tensor, "n k cells"]:
    """A Gaussian around each coordinate, on the centres of a grid's cells along its axis."""
    width = 2 * WIDTH / len(at)
    return torch.exp(-(x - at).square() / (2 * width**2))


def motion(
    pictures: Float[Tensor, "batch frames 3 h w"],
) -> Float[Tensor, "batch frames 1 h w"]:
    """The larger change to a neighbouring picture of the window, at most 1 (a quarter range)."""
    if pictures.shape[1] == 1:
        return torch.zeros_like(pictures[:, :, :1])
    change = pictures.diff(dim=1).abs().amax(2, keepdim=True).clamp(max=1)
    after = torch.cat([change, change[:, -1:]], dim=1)
    before = torch.cat([change[:, :1], change], dim=1)
    return torch.maximum(before, after)
