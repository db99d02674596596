"""An encoder that can only say *where* things are.

Convolutions make K maps of a picture; a softmax turns each into a distribution over the grid,
whose mean is a point. The latent is the points' coordinates, x of all then y of all, each in
[-1, 1] and multiplied by its own scale:

    p_k = softmax(exp(tau_k) h_k),    x_k = sum p_k gx,    y_k = sum p_k gy,    z = scale * (x, y)

So distances in the latent are distances between points of the scene, and a planner that brings
two latents together brings the points of one picture to those of another.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from bilinear_wm.dynamics.layers import BatchNorm
from bilinear_wm.errors import InputError
from bilinear_wm.models.config import ModelConfig

SCALE = 3.0
"""Of every coordinate, until `bwm train-residual` weighs them."""
LARGEST_SHIFT = 6
"""Pixels by which the shift term moves a picture: more than a cell, so that strides show."""


class PointsEncoder(nn.Module):
    """uint8 pictures (..., H, W, 3) to scaled coordinates (..., 2 K)."""

    scale: Tensor
    grid_x: Tensor
    grid_y: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        channels, count = config.channels, config.num_points
        if count < 1 or channels < 4:
            raise InputError(
                "num_points, channels: expected at least 1 point and 4 channels, "
                f"found {count} and {channels}; give others (--options)"
            )
        down, across = grid_shape(config)
        first, second = strides(config.image_size // down)
        narrow, middle = channels * 3 // 8, channels * 3 // 4
        self.maps = nn.Sequential(
            *convolution(3, narrow, 2 * first + 1, first),
            *convolution(narrow, middle, 3, second),
            *convolution(middle, channels, 3),
            *convolution(channels, channels, 3, dilation=2),
            nn.Conv2d(channels, count, 1),
        )
        self.sharpness = nn.Parameter(torch.zeros(count, 1))
        self.register_buffer("scale", torch.full((2 * count,), SCALE))
        channels_last(self)  # half the time of a step on a CPU
        self.register_buffer("grid_x", cells(across).repeat(down), persistent=False)
        self.register_buffer("grid_y", cells(down).repeat_interleave(across), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "*batch h w 3"]) -> Float[Tensor, "*batch d"]:
        batch = pixels.shape[:-3]
        flat = as_maps(pixels.reshape(-1, *pixels.shape[-3:]))
        with torch.autocast(flat.device.type, enabled=False):
            heights = self.maps(flat).flatten(2).float() * self.sharpness.exp()
            where = heights.softmax(-1)
            points = torch.cat([where @ self.grid_x, where @ self.grid_y], dim=-1)
            return (self.scale * points).reshape(*batch, -1)

    def points(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch k 2"]:
        """The coordinates that a latent stands for: x to the right, y down, both in [-1, 1]."""
        return (z / self.scale).unflatten(-1, (2, -1)).mT


def grid_shape(config: ModelConfig) -> tuple[int, int]:
    """Square cells of the maps: how many down, how many across."""
    (height, width), grid = config.picture_shape, config.grid
    cell = height // grid if grid > 0 else 0
    if grid < 2 or height % grid or width % cell or width // cell < 2:
        square = "" if height == width else f" whose cells also divide the width {width}"
        raise InputError(
            f"grid: expected a divisor of image_size {height}{square}, found {grid}; "
            "give another (--options '{\"grid\": ...}'), or pictures of another size"
        )
    return grid, width // cell


def shifted(pixels: UInt8[Tensor, "n h w 3"], by: Int[Tensor, "n 2"]) -> UInt8[Tensor, "n h w 3"]:
    """Pictures moved right and down by whole pixels, their edges repeated."""
    n, height, width = pixels.shape[:3]
    rows = (torch.arange(height, device=by.device) - by[:, 1:]).clamp(0, height - 1)
    columns = (torch.arange(width, device=by.device) - by[:, :1]).clamp(0, width - 1)
    picture = torch.arange(n, device=by.device)[:, None, None]
    return pixels[picture, rows[:, :, None], columns[:, None, :]]


def as_maps(pixels: UInt8[Tensor, "n h w 3"]) -> Float[Tensor, "n 3 h w"]:
    """Pictures as channels with values in [-2, 2]."""
    return pixels.permute(0, 3, 1, 2).float() * (4 / 255) - 2


def cells(grid: int) -> Float[Tensor, " grid"]:
    """The centres of a grid's cells along one axis of [-1, 1]."""
    return (torch.arange(grid) + 0.5) * (2 / grid) - 1


def channels_last(module: nn.Module) -> None:
    """Keep the weights of convolutions in the order of the pictures."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.weight.data = part.weight.data.contiguous(memory_format=torch.channels_last)


def strides(factor: int) -> tuple[int, int]:
    """Two strides that shrink a picture by `factor`."""
    return (factor // 2, 2) if factor % 2 == 0 else (factor, 1)


def convolution(
    before: int, after: int, kernel: int, stride: int = 1, dilation: int = 1
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """A convolution that keeps the size (over the stride), its batch norm, and a GELU."""
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(before, after, kernel, stride, padding, dilation, bias=False)
    return conv, BatchNorm(after), nn.GELU()
