"""Layers that encoders and predictors share."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


def attend(qkv: Tensor, heads: int, causal: bool = False, dropout: float = 0.0) -> Tensor:
    """Multi-head attention over stacked queries, keys and values."""
    q, k, v = rearrange(qkv, "b n (three h c) -> three b h n c", three=3, h=heads)
    mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
    return rearrange(mixed, "b h n c -> b n (h c)")


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
