"""Does the model still explain what happens? The action-recovery monitor.

After a block was executed, the action that the model recovers from the two latents is compared
with the action that was sent. In the directions that pictures show well they agree; a push from
outside, a blocked arm or a changed picture makes them differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel


@dataclass(frozen=True)
class ActionMonitor:
    """Compares recovered with executed actions.

    Attributes:
        dynamics: The bilinear dynamics.
        threshold: Largest disagreement that still counts as explained.
    """

    dynamics: BilinearDynamics
    threshold: float

    @torch.no_grad()
    def disagreement(
        self,
        z: Float[Tensor, "*batch d"],
        action: Float[Tensor, "*batch m"],
        z_next: Float[Tensor, "*batch d"],
    ) -> Float[Tensor, "*batch"]:
        """Distance between recovered and executed action, averaged over the block."""
        size = self.dynamics.env_action_size
        difference = self.dynamics.inverse(z, z_next) - action
        return difference.unflatten(-1, (-1, size)).mean(-2).norm(dim=-1)

    def fires(self, z: Tensor, action: Tensor, z_next: Tensor) -> bool:
        """Whether one block is not explained."""
        return bool(self.disagreement(z, action, z_next) > self.threshold)

    @classmethod
    def calibrated(
        cls,
        model: WorldModel,
        z: Float[Tensor, "windows frames d"],
        actions: Float[Tensor, "windows frames-1 m"],
        false_alarms: float = 0.01,
    ) -> ActionMonitor:
        """The threshold that a share of undisturbed blocks exceeds."""
        if not isinstance(model.dynamics, BilinearDynamics):
            raise InputError(
                f"monitor: expected a bilinear model, which recovers actions, found {model.kind}"
            )
        monitor = cls(model.dynamics, float("inf"))
        values = monitor.disagreement(z[:, :-1], actions, z[:, 1:]).flatten()
        return cls(model.dynamics, float(torch.quantile(values.float(), 1 - false_alarms)))
