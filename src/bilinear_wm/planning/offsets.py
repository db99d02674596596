"""Where the random candidates of Gauss-Newton lie, for both of its engines."""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor


class _Spread(Protocol):
    @property
    def spread(self) -> float: ...
    @property
    def seed(self) -> int: ...


def random_offsets(
    config: _Spread, lift: Float[Tensor, "m r"], count: int, horizon: int
) -> Float[Tensor, "count h m"]:
    """Random coherent plans of root mean square `spread`."""
    m, r = lift.shape
    generator = torch.Generator().manual_seed(config.seed)
    white = torch.randn(count, horizon, r, generator=generator)
    repeats = (m / r) ** 0.5
    return config.spread * repeats * (white @ lift.cpu().float().mT)
