"""LeWM: prediction, held up by a regulariser that keeps the latents Gaussian (SIGReg)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from bilinear_wm.dynamics.predictor import PredictorDynamics
from bilinear_wm.models.base import Loss, WorldModel
from bilinear_wm.models.predictor import PredictorConfig


@dataclass(frozen=True)
class LeWorldModelConfig(PredictorConfig):
    """Attributes:
    regularizer_weight: Weight of SIGReg beside the prediction error.
    """

    history: int = 3
    regularizer_weight: float = 0.09
    num_projections: int = 1024


class SIGReg(nn.Module):
    """How far random one-dimensional projections of a sample are from a standard normal.

    The Epps-Pulley statistic compares characteristic functions. For the projections x of N
    samples and a window w(t) = exp(-t^2 / 2),

        N * integral |mean exp(i t x) - exp(-t^2 / 2)|^2 w(t) dt,

    by the trapezoid rule on 17 knots in [0, 3], doubled because the integrand is even. The samples
    are those of all processes: n of them compute what one would.
    """

    def __init__(
        self, num_projections: int = 1024, num_knots: int = 17, limit: float = 3.0
    ) -> None:
        super().__init__()
        self.num_projections = num_projections
        knots = torch.linspace(0, limit, num_knots)
        weights = torch.full((num_knots,), 2 * limit / (num_knots - 1))
        weights[[0, -1]] /= 2
        target = torch.exp(-knots.square() / 2)
        self.register_buffer("knots", knots, persistent=False)
        self.register_buffer("target", target, persistent=False)
        self.register_buffer("weights", weights * target, persistent=False)

    def forward(self, z: Float[Tensor, "samples d"]) -> Float[Tensor, ""]:
        directions = torch.randn(z.shape[-1], self.num_projections, device=z.device)
        processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if processes > 1:
            dist.broadcast(directions, 0)
        projected = z.float() @ (directions / directions.norm(dim=0))
        angle = projected.unsqueeze(-1) * self.knots
        means = torch.stack([angle.cos().mean(0), angle.sin().mean(0)])
        if processes > 1:
            from torch.distributed.nn.functional import all_reduce

            means = all_reduce(means) / processes
        real, imaginary = means
        error = (real - self.target).square() + imaginary.square()
        return processes * len(z) * (error @ self.weights).mean()


class LeWorldModel(WorldModel):
    """The baseline of the paper's comparison that regularises the latent distribution."""

    kind = "lewm"
    config_class = LeWorldModelConfig
    config: LeWorldModelConfig
    dynamics: PredictorDynamics

    def __init__(self, config: LeWorldModelConfig) -> None:
        super().__init__(config)
        self.dynamics = PredictorDynamics(config)
        self.regularizer = SIGReg(config.num_projections)

    def latent_loss(
        self, z: Float[Tensor, "batch frames d"], actions: Float[Tensor, "batch frames-1 m"]
    ) -> Loss:
        """Prediction error + weight * SIGReg of the latents at each time."""
        history = min(self.config.history, actions.shape[1])
        before, after = z[:, :-1].unfold(1, history, 1).mT, z[:, 1:].unfold(1, history, 1).mT
        steps = actions.unfold(1, history, 1).mT
        predicted = self.dynamics.predict(before.flatten(0, 1), steps.flatten(0, 1))
        forward = (predicted - after.flatten(0, 1)).square().mean()
        regularizer = torch.stack([self.regularizer(at) for at in z.unbind(1)]).mean()
        total = forward + self.config.regularizer_weight * regularizer
        return Loss(total, forward, regularizer=regularizer)
