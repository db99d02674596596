"""What every dynamics offers: step and roll out."""

from __future__ import annotations

import abc

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Dynamics(nn.Module, abc.ABC):
    """How actions move a latent. This is all that a planner sees of a model."""

    latent_size: int
    action_size: int
    """Numbers in one model action (a block)."""
    env_action_size: int
    """Numbers in one environment action: a block is several of them."""

    @abc.abstractmethod
    def step(
        self, z: Float[Tensor, "*batch d"], a: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch d"]:
        """The latent after one model step."""

    def rollout(
        self, z0: Float[Tensor, "*batch d"], actions: Float[Tensor, "*batch h m"]
    ) -> Float[Tensor, "*batch h+1 d"]:
        """The latents from `z0` on, one per model step."""
        latents = [z0]
        for a in actions.unbind(-2):
            latents.append(self.step(latents[-1], a))
        return torch.stack(latents, dim=-2)
