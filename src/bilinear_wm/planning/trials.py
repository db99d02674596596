"""What both engines of Gauss-Newton try: where searches begin, and how steps are damped."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

TRIALS = 4
"""Steps among which the best is taken."""
ENOUGH = 0.75
"""Of what the quadratic promises: a first step that brings as much is taken as it is."""
DAMPINGS = (0.0, *(10.0**power for power in range(-3, 8)))
"""Of the steps in turn, in units of the Hessian's mean diagonal and beside the planner's own."""
MOST_ALIGNED = 8
"""Candidates along one line: more of them see little that is new."""


class _Spread(Protocol):
    @property
    def spread(self) -> float: ...
    @property
    def seed(self) -> int: ...


def num_aligned(candidates: int) -> int:
    """How many of the candidates go down the gradient; the others are random."""
    return min(math.ceil(candidates / 2), MOST_ALIGNED)


def random_offsets(
    config: _Spread, lift: Float[Tensor, "m r"], count: int, horizon: int
) -> Float[Tensor, "count h m"]:
    """Random coherent plans of root mean square `spread`."""
    m, r = lift.shape
    generator = torch.Generator().manual_seed(config.seed)
    white = torch.randn(count, horizon, r, generator=generator)
    repeats = (m / r) ** 0.5
    return config.spread * repeats * (white @ lift.cpu().float().mT)
