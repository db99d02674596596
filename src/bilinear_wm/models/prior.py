"""What the recorded behaviour would do: a plan to begin from. Ours; the paper has none.

Every recorded window shows, in hindsight, how to get from its first latent to its last. A small
network learns from windows of one to fifteen blocks how they begin, by squared error:

    (a_1 ... a_5) = pi(z, z', h)

A planner begins its search there, and counts effort from there: c / 2 |a - pi|^2. Where a model
knows the world only along the behaviour (a grasp holds if one grasps as the behaviour does), plans
that leave it believe in what is not so; the larger c, the less they may.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

BLOCKS = 5
"""How many blocks it tells ..."""
FARTHEST = 15
"""... of the way to a goal at most this many blocks ahead."""


class ActionPrior(nn.Module):
    """Blocks of actions from one latent to another.

    Args:
        latent_size: Numbers in a latent.
        block_size: Numbers in a block of actions.
        hidden: Width of the network.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, latent_size: int, block_size: int, hidden: int) -> None:
        super().__init__()
        self.block_size = block_size
        self.layers = nn.Sequential(
            nn.Linear(2 * latent_size + FARTHEST, hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, BLOCKS * block_size),
        )  # fmt: skip
        self.register_buffer("mean", torch.zeros(latent_size))
        self.register_buffer("std", torch.ones(latent_size))

    @torch.no_grad()
    def prepare(self, z: Float[Tensor, "samples d"]) -> None:
        """Take the units of latents like these; coordinates that hardly vary say nothing."""
        std = z.std(0)
        self.mean.copy_(z.mean(0))
        self.std.copy_(std.clamp_min(0.02 * float(std.max()) + 1e-12))

    def forward(
        self,
        z: Float[Tensor, "batch d"],
        z_goal: Float[Tensor, "batch d"],
        blocks: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch blocks m"]:
        """`BLOCKS` blocks each, of a way of `blocks`; beyond its end they mean nothing."""
        time = F.one_hot(blocks - 1, FARTHEST).to(z)
        seen = torch.cat([(z - self.mean) / self.std, (z_goal - z) / self.std, time], dim=-1)
        told: Tensor = self.layers(seen)
        return told.unflatten(-1, (BLOCKS, self.block_size))

    def propose(
        self, z: Float[Tensor, "batch d"], z_goal: Float[Tensor, "batch d"], horizon: int
    ) -> Float[Tensor, "batch horizon m"]:
        """A plan of that length; what is not told is rest."""
        ahead = torch.full((len(z),), min(horizon, FARTHEST), device=z.device)
        told = self(z, z_goal, ahead)[:, :horizon]
        return F.pad(told, (0, 0, 0, horizon - told.shape[1]))
