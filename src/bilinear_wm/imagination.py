"""What a latent looks like: the nearest picture among many that the model has encoded."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.collect import EVALUATION_STREAM, episode_seed, simulate_episode
from bilinear_wm.models.base import WorldModel
from bilinear_wm.tasks.base import Task

EPISODES, PICTURES = 12, 600


class Imagination:
    """A bank of pictures with their latents, from behaviour episodes of a task."""

    def __init__(self, model: WorldModel, camera: Task, seed: int = 0) -> None:
        states = np.concatenate(
            [
                simulate_episode(camera, episode_seed(seed, 10_000 + i, EVALUATION_STREAM)).states
                for i in range(EPISODES)
            ]
        )
        chosen = np.linspace(0, len(states) - 1, min(PICTURES, len(states))).astype(int)
        self._pictures = np.stack([camera.picture(states[i]) for i in chosen])
        self._latents = torch.cat(
            [model.encode(some) for some in np.array_split(self._pictures, 8)]
        )

    def pictures(self, z: Tensor) -> NDArray[np.uint8]:
        """For each latent the picture whose own latent is nearest."""
        nearest = torch.cdist(z, self._latents).argmin(-1)
        return self._pictures[nearest.cpu().numpy()]
