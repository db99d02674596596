"""Plans that worked before: the recorded window nearest to where one is and wants to be.

Gauss-Newton goes downhill from where it begins. Some goals have no straight way to them: a cube
must be grasped before it can be carried, and from a plan of zeros the arm goes to where the goal
picture shows it, without the cube. A recorded window whose first and last latents are near begins
the search in the right valley.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from bilinear_wm.analysis.latents import encode_windows
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel

WINDOWS = 4000


class PlanMemory:
    """Latents at both ends of recorded windows, and the actions between them.

    Args:
        z: First to last latents of the windows.
        actions: The blocks between them.
    """

    def __init__(
        self, z: Float[Tensor, "windows t d"], actions: Float[Tensor, "windows t-1 m"]
    ) -> None:
        self.horizon = actions.shape[1]
        self._ends, self._actions = torch.cat([z[:, 0], z[:, -1]], dim=-1), actions

    @classmethod
    def of(cls, model: WorldModel, data: EpisodeDataset, horizon: int) -> PlanMemory:
        """From the training part of an episode file."""
        windows = data.reframed(horizon + 1)
        if len(windows) == 0:
            raise InputError(
                f"memory: expected episodes of more than {horizon} blocks in {data.file.path}"
            )
        z, actions, _ = encode_windows(model, windows, WINDOWS)
        return cls(z, actions)

    def recall(
        self, z0: Float[Tensor, "batch d"], z_goal: Float[Tensor, "batch d"]
    ) -> Float[Tensor, "batch h m"]:
        """For each problem the actions of the nearest window."""
        nearest = torch.cdist(torch.cat([z0, z_goal], dim=-1), self._ends).argmin(-1)
        return self._actions[nearest]
