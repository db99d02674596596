"""A world model of your own: a dynamics with `step`, and a loss. This one is linear.

    python examples/new_model.py
    bwm train --data tworoom.h5 --out runs/linear --model linear --plugin examples/new_model.py

z' = A z + B a, held up by recovering the action with a pseudo-inverse. Registered under its kind,
it trains, saves, loads and plans like the others.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.dynamics.base import Dynamics
from bilinear_wm.models import load_model
from bilinear_wm.models.base import Loss, WorldModel
from bilinear_wm.models.config import ENCODER_SIZES, ModelConfig
from bilinear_wm.planning import GaussNewtonPlanner, PlanProblem
from bilinear_wm.registry import MODELS
from bilinear_wm.training.train import TrainConfig, train


@dataclass(frozen=True)
class LinearConfig(ModelConfig):
    """Attributes:
    inverse_weight: Weight of the recovered action's error.
    """

    inverse_weight: float = 1.0


class LinearDynamics(Dynamics):
    def __init__(self, config: LinearConfig) -> None:
        super().__init__()
        self.latent_size, self.action_size = config.latent_size, config.block_size
        self.env_action_size = config.action_size
        self.A = nn.Parameter(torch.eye(self.latent_size))
        self.B = nn.Parameter(torch.randn(self.latent_size, self.action_size) / 10)

    def step(self, z: Tensor, a: Tensor) -> Tensor:
        return z @ self.A.T + a @ self.B.T


class LinearWorldModel(WorldModel):
    kind = "linear"
    config_class = LinearConfig
    config: LinearConfig
    dynamics: LinearDynamics

    def __init__(self, config: LinearConfig) -> None:
        super().__init__(config)
        self.dynamics = LinearDynamics(config)

    def latent_loss(self, z: Tensor, actions: Tensor) -> Loss:
        moved = z[:, 1:] - z[:, :-1] @ self.dynamics.A.T
        forward = (moved - actions @ self.dynamics.B.T).square().mean()
        inverse = (moved @ torch.linalg.pinv(self.dynamics.B).T - actions).square().mean()
        return Loss(forward + self.config.inverse_weight * inverse, forward, inverse)


MODELS.register(LinearWorldModel.kind, LinearWorldModel)


def main(folder: Path, episodes: int = 30, steps: int = 5) -> None:
    data = folder / "tworoom.h5"
    collect(CollectConfig("tworoom", data, episodes, image_size=32, workers=1), progress=False)
    options = dict(ENCODER_SIZES["compact"])
    train(TrainConfig(data, folder / "run", "linear", options=options, steps=steps, batch_size=8))
    model = load_model(folder / "run").eval()
    # Without `step_jet` the planner differentiates by finite differences.
    z0, z_goal = torch.randn(2, model.config.latent_size)
    plan = GaussNewtonPlanner(model.dynamics).plan(PlanProblem(z0, z_goal, horizon=3))
    print(f"{type(model).__name__}: {plan.status} after {plan.iterations} iterations")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
