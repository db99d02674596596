"""Small dynamics that behave like trained ones, and every planner in a quick setting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bilinear_wm.dynamics.base import Dynamics
from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.predictor import PredictorDynamics
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.models.predictor import PredictorConfig
from bilinear_wm.planning import (
    AdamConfig,
    AdamPlanner,
    CEMConfig,
    CEMPlanner,
    GaussNewtonConfig,
    GaussNewtonPlanner,
    ICEMConfig,
    ICEMPlanner,
    MPPIConfig,
    MPPIPlanner,
    Planner,
    PlanProblem,
)

D, M, ENV = 12, 6, 2


def bilinear(seed: int = 0, dtype: torch.dtype = torch.float32, d: int = D) -> BilinearDynamics:
    """Drift near the identity, directions that turn with the latent, gains that differ."""
    torch.manual_seed(seed)
    made = BilinearDynamics(d, M, env_action_size=ENV)
    with torch.no_grad():
        made.A.add_(0.03 * torch.randn(d, d))
        made.R.mul_(0.3).add_(0.05 * torch.randn(M, M))
    return made.to(dtype).eval()


def with_residual(seed: int = 0) -> ResidualDynamics:
    made = ResidualDynamics(bilinear(seed), hidden=16)
    last = made.residual[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.normal_(last.weight, std=0.05)
    return made.eval()


def predictor(seed: int = 0) -> PredictorDynamics:
    torch.manual_seed(seed)
    config = PredictorConfig(
        "t",
        64,
        M // ENV,
        (0.0,) * ENV,
        (1.0,) * ENV,
        num_points=D // 2,
        history=2,
        predictor_depth=1,
    )
    made = PredictorDynamics(config).eval()
    for name, parameter in made.named_parameters():  # zero gates would hide the actions
        if "steer" in name and parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.2)
    return made


DYNAMICS: dict[str, Callable[[], Dynamics]] = {
    "bilinear": bilinear,
    "residual": with_residual,
    "predictor": predictor,
}

PLANNERS: dict[str, Callable[[Dynamics], Planner]] = {
    "gauss-newton": lambda d: GaussNewtonPlanner(d, GaussNewtonConfig(iterations=15)),
    "gauss-newton-torch": lambda d: GaussNewtonPlanner(
        d, GaussNewtonConfig(iterations=15, compiled=False)
    ),
    "gauss-newton-paper": lambda d: GaussNewtonPlanner(
        d,
        GaussNewtonConfig(
            iterations=15,
            sensitivities="finite-difference",
            refreshed_blocks=2,
            candidates=8,
            starts=2,
        ),
    ),
    "cem": lambda d: CEMPlanner(d, CEMConfig(samples=24, elites=6, iterations=4)),
    "cem-mean": lambda d: CEMPlanner(
        d, CEMConfig(samples=24, elites=6, iterations=4, returns="mean")
    ),
    "icem": lambda d: ICEMPlanner(d, ICEMConfig(samples=24, elites=6, iterations=4)),
    "mppi": lambda d: MPPIPlanner(d, MPPIConfig(samples=24, iterations=4)),
    "adam": lambda d: AdamPlanner(d, AdamConfig(iterations=15)),
}


def problem(batch: int | None = None, horizon: int = 3, box: bool = True) -> PlanProblem:
    generator = torch.Generator().manual_seed(3)
    shape = (D,) if batch is None else (batch, D)
    z0, goal = (torch.randn(shape, generator=generator) for _ in range(2))
    bound = torch.tensor([1.0, 0.7] * (M // ENV))
    return PlanProblem(z0, goal, horizon, *((-bound, bound) if box else (None, None)))


def goal_of(p: PlanProblem) -> torch.Tensor:
    assert p.z_goal is not None
    return p.z_goal


def dynamics_of(planner: Planner) -> BilinearDynamics:
    assert isinstance(planner.dynamics, BilinearDynamics)
    return planner.dynamics


@pytest.fixture(params=PLANNERS)
def planner(request: pytest.FixtureRequest) -> Planner:
    return PLANNERS[request.param](bilinear())
