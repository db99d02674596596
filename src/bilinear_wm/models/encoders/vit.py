"""The paper's encoder: a vision transformer with a class token, and LeWM's projector."""

from __future__ import annotations

import itertools

import torch
from einops.layers.torch import Rearrange
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from bilinear_wm.dynamics.layers import BatchNorm, Projector, attend
from bilinear_wm.errors import InputError
from bilinear_wm.models.config import ModelConfig

EPS = 1e-12
"""Of all norms, as in the published encoders."""
PIXEL_MEAN, PIXEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class VisionTransformer(nn.Module):
    """uint8 pictures (..., H, W, 3) to latents (..., picture_size)."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        patch, width = config.patch_size, config.width
        height, width_px = config.picture_shape
        if patch < 1 or height % patch or width_px % patch:
            sides = f"{height}" if height == width_px else f"{height} and image_width {width_px}"
            raise InputError(
                f"patch_size: expected a divisor of image_size {sides}, "
                f"found {patch}; give another (--options), or pictures of another size"
            )
        if width % config.heads:
            raise InputError(f"heads: expected a divisor of width {width}, found {config.heads}")
        self.stem = patches(patch, width) if config.stem == "patch" else strided(patch, width)
        num_tokens = (height // patch) * (width_px // patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, num_tokens + 1, width))
        self.blocks = nn.ModuleList(
            Block(width, config.heads, config.mlp_ratio * width) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.project = Projector(width, config.projector_hidden, config.picture_size)
        self.register_buffer("pixel_mean", 255 * torch.tensor(PIXEL_MEAN), persistent=False)
        self.register_buffer("pixel_std", 255 * torch.tensor(PIXEL_STD), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "*batch h w 3"]) -> Float[Tensor, "*batch d"]:
        batch = pixels.shape[:-3]
        flat = (pixels.reshape(-1, *pixels.shape[-3:]) - self.pixel_mean) / self.pixel_std
        tokens = self.stem(flat)
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = tokens + self.position
        for block in self.blocks:
            tokens = block(tokens)
        latent: Tensor = self.project(self.norm(tokens[:, 0]))
        return latent.to(self.pixel_mean.dtype).reshape(*batch, -1)


def patches(size: int, width: int) -> nn.Sequential:
    """Pictures (n, H, W, 3) to tokens, each of a patch by itself: the paper's."""
    return nn.Sequential(
        Rearrange("n (h p) (w q) c -> n (h w) (p q c)", p=size, q=size),
        nn.Linear(3 * size**2, width),
    )


def strided(size: int, width: int) -> nn.Sequential:
    """Convolutions that halve the picture until a patch is one token; channels double."""
    halvings = size.bit_length() - 1
    if size != 1 << halvings or halvings < 1:
        raise InputError(f"patch_size: expected a power of two for the conv stem, found {size}")
    layers: list[nn.Module] = [Rearrange("n h w c -> n c h w")]
    channels = [3] + [max(width >> (halvings - 1 - i), 16) for i in range(halvings)]
    for before, after in itertools.pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), BatchNorm(after), nn.GELU()]
    layers[-1] = Rearrange("n c h w -> n (h w) c")
    return nn.Sequential(*layers)


class Block(nn.Module):
    """Pre-norm self-attention and MLP."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width, eps=EPS)
        self.norm_mlp = nn.LayerNorm(width, eps=EPS)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(attend(self.qkv(self.norm_attention(x)), self.heads))
        result: Tensor = x + self.mlp(self.norm_mlp(x))
        return result
