"""A planner of your own: one method. This one draws plans at random and keeps the best.

    python examples/new_planner.py
    bwm evaluate --task tworoom --checkpoint pretrained/tworoom --planner shooting \\
        --planner-options '{"samples": 500}' --plugin examples/new_planner.py

The base class checks problems, keeps bounds and promises; `_search` only searches. What it
returns must not cost more than `search.start`, which is why that is among the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.planning.base import (
    PlannableDynamics,
    Planner,
    PlannerConfig,
    PlanProblem,
    Search,
    SearchResult,
    candidate_costs,
    search_result,
)
from bilinear_wm.registry import PLANNERS


@dataclass(frozen=True)
class ShootingConfig(PlannerConfig):
    """Attributes:
    samples: Plans drawn.
    """

    samples: int = 1000


class ShootingPlanner(Planner):
    """Random shooting."""

    config_class = ShootingConfig
    config: ShootingConfig

    def __init__(self, dynamics: PlannableDynamics, config: ShootingConfig | None = None) -> None:
        super().__init__(dynamics, config or ShootingConfig())

    def _search(self, search: Search) -> SearchResult:
        generator = torch.Generator().manual_seed(self.config.seed)
        shape = (self.config.samples, *search.start.shape[1:])
        drawn = torch.randn(shape, generator=generator).to(search.start)
        plans = torch.cat([search.start[:, None], search.start[:, None] + drawn], dim=1)
        plans = search.clamp(plans)
        costs, best = candidate_costs(self.dynamics, search, plans).min(dim=1)
        rows = torch.arange(len(plans))
        return search_result(plans[rows, best], costs, 1, 1)


PLANNERS.register("shooting", ShootingPlanner)


def main() -> None:
    torch.manual_seed(0)
    dynamics = BilinearDynamics(latent_size=16, action_size=4, env_action_size=2)
    z0, z_goal = torch.randn(2, 16)
    problem = PlanProblem(z0, z_goal, horizon=3)
    for samples in (10, 100, 1000, 10_000):
        plan = ShootingPlanner(dynamics, ShootingConfig(samples=samples)).plan(problem)
        print(f"{samples:6} plans: cost {float(plan.cost):.3f} in {1e3 * plan.seconds:.1f} ms")


if __name__ == "__main__":
    main()
