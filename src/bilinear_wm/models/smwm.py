"""SMWM: prediction, held up by a network that recovers the action (sensorimotor model)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bilinear_wm.dynamics.predictor import PredictorDynamics
from bilinear_wm.models.base import Loss, WorldModel
from bilinear_wm.models.predictor import PredictorConfig

INVERSE_WEIGHTS = {"tworoom": 0.1, "pusht": 30.0, "reacher": 5.0, "cube": 1.0}


@dataclass(frozen=True)
class SensorimotorConfig(PredictorConfig):
    """Attributes:
    inverse_weight: Weight of the recovered action's error; per task in `INVERSE_WEIGHTS`.
    inverse_hidden: Width of the network that recovers actions.
    """

    inverse_weight: float = 1.0
    inverse_hidden: int = 256


class SensorimotorWorldModel(WorldModel):
    """The baseline of the paper's comparison that recovers actions by an MLP."""

    kind = "smwm"
    config_class = SensorimotorConfig
    config: SensorimotorConfig
    dynamics: PredictorDynamics

    def __init__(self, config: SensorimotorConfig) -> None:
        super().__init__(config)
        self.dynamics = PredictorDynamics(config)
        hidden = config.inverse_hidden
        self.inverse = nn.Sequential(
            nn.Linear(2 * config.latent_size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, config.block_size),
        )

    def latent_loss(
        self, z: Float[Tensor, "batch frames d"], actions: Float[Tensor, "batch frames-1 m"]
    ) -> Loss:
        """Prediction error + weight * error of the recovered actions."""
        forward = (self.dynamics.step(z[:, :-1], actions) - z[:, 1:]).square().mean()
        recovered = self.inverse(torch.cat([z[:, :-1], z[:, 1:]], dim=-1))
        inverse = (recovered - actions).square().mean()
        return Loss(forward + self.config.inverse_weight * inverse, forward, inverse)
