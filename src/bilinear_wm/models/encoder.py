"""Pictures to latents: a vision transformer with a class token, and LeWM's projector."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from einops import rearrange
from einops.layers.torch import Rearrange
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from bilinear_wm.models.config import ModelConfig

PIXEL_MEAN, PIXEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Encoder(nn.Module):
    """uint8 pictures (..., H, W, 3) to latents (..., latent_size)."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.stem, num_tokens = make_stem(config)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.position = nn.Parameter(0.02 * torch.randn(1, num_tokens + 1, config.width))
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.mlp_ratio * config.width)
            for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width)
        self.project = Projector(config.width, config.projector_hidden, config.latent_size)
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
        return latent.float().reshape(*batch, -1)


class Block(nn.Module):
    """Pre-norm self-attention and MLP."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(attend(self.qkv(self.norm_attention(x)), self.heads))
        result: Tensor = x + self.mlp(self.norm_mlp(x))
        return result


def attend(qkv: Tensor, heads: int, causal: bool = False) -> Tensor:
    """Multi-head attention over stacked queries, keys and values."""
    q, k, v = rearrange(qkv, "b n (three h c) -> three b h n c", three=3, h=heads)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return rearrange(mixed, "b h n c -> b n (h c)")


def make_stem(config: ModelConfig) -> tuple[nn.Module, int]:
    """What turns pictures (n, H, W, 3) into tokens, and how many."""
    side = config.image_size // config.patch_size
    if config.stem == "patch":
        patches = Rearrange(
            "n (h p) (w q) c -> n (h w) (p q c)", p=config.patch_size, q=config.patch_size
        )
        return nn.Sequential(patches, nn.Linear(3 * config.patch_size**2, config.width)), side**2
    # Strided convolutions halve the picture until a patch is one token; channels double.
    layers: list[nn.Module] = [Rearrange("n h w c -> n c h w")]
    halvings = config.patch_size.bit_length() - 1
    channels = [3] + [max(config.width >> (halvings - 1 - i), 16) for i in range(halvings)]
    for before, after in itertools.pairwise(channels):
        layers.append(nn.Conv2d(before, after, 3, stride=2, padding=1))
        if config.stem_norm:
            layers.append(BatchNorm(after))
        layers.append(nn.GELU())
    layers[-1] = Rearrange("n c h w -> n (h w) c")
    return nn.Sequential(*layers), side**2


class Projector(nn.Sequential):
    """Linear, BatchNorm, GELU, Linear."""

    def __init__(self, size_in: int, hidden: int, size_out: int) -> None:
        super().__init__(
            nn.Linear(size_in, hidden), BatchNorm(hidden), nn.GELU(), nn.Linear(hidden, size_out)
        )


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of rows (..., channels) or maps (n, channels, h, w), over all processes.

    torch's SyncBatchNorm needs a GPU; this one averages over processes on any device, so that
    n processes compute what one would.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Any shape with the channels second."""

    def forward(self, input: Tensor) -> Tensor:
        x = input if input.ndim == 4 else input.reshape(-1, input.shape[-1])
        if self.training and dist.is_available() and dist.is_initialized():
            return self._normalize_together(x).view_as(input)
        return super().forward(x).view_as(input)

    def _normalize_together(self, x: Tensor) -> Tensor:
        from torch.distributed.nn.functional import all_reduce

        x = x.float()
        others = [axis for axis in range(x.ndim) if axis != 1]
        moments = torch.stack([x.mean(others), x.square().mean(others)])
        mean, square = all_reduce(moments) / dist.get_world_size()
        variance = (square - mean.square()).clamp_min(0)
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
            momentum = (
                1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            )
            count = x.numel() // x.shape[1] * dist.get_world_size()
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * count / max(count - 1, 1), momentum)
        scale = (variance + self.eps).rsqrt() * self.weight
        channels = (1, -1) + (1,) * (x.ndim - 2)
        return (x - mean.view(channels)) * scale.view(channels) + self.bias.view(channels)
