"""Gradient descent on the plan by Adam: slow, simple, works with anything differentiable."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bilinear_wm.planning.base import (
    PlannableDynamics,
    Planner,
    PlannerConfig,
    Search,
    SearchResult,
    candidate_costs,
    require,
    search_result,
)


@dataclass(frozen=True)
class AdamConfig(PlannerConfig):
    """Settings.

    Attributes:
        iterations: Gradient steps.
        learning_rate: In standard deviations of an action.
    """

    effort: float = 0.01
    iterations: int = 100
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require("iterations", self.iterations >= 1, "at least 1", self)
        require("learning_rate", self.learning_rate > 0, "a positive number", self)


class AdamPlanner(Planner):
    """Projected onto the box after each step; returns the best plan on the way."""

    config_class = AdamConfig
    config: AdamConfig

    def __init__(self, dynamics: PlannableDynamics, config: AdamConfig | None = None) -> None:
        super().__init__(dynamics, config or AdamConfig())
        # torch loads seconds of modules for its first step: now, not within a deadline.
        nothing = torch.zeros(1, requires_grad=True)
        with torch.enable_grad():
            nothing.square().sum().backward()
        torch.optim.Adam([nothing]).step()

    def _search(self, search: Search) -> SearchResult:
        config = self.config
        best = search.start
        lowest = candidate_costs(self.dynamics, search, best[:, None])[:, 0]
        done = 0
        with torch.enable_grad():
            actions = search.start.clone().requires_grad_()
            optimizer = torch.optim.Adam([actions], lr=config.learning_rate)
            for done in search.iterations(config.iterations):  # noqa: B007  (counted beyond it)
                latents = self.dynamics.rollout(search.z0, actions)
                cost = search.objective.value(latents[:, None], actions[:, None])[:, 0]
                # Only the plan is differentiated: the model may be shared with other threads.
                total = torch.where(torch.isfinite(cost), cost, 0.0).sum()
                (actions.grad,) = torch.autograd.grad(total, actions)
                actions.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
                better = cost.detach() < lowest
                best = torch.where(better[:, None, None], actions.detach(), best)
                lowest = torch.where(better, cost.detach(), lowest)
                optimizer.step()
                with torch.no_grad():
                    actions.copy_(search.clamp(actions))
        return search_result(best, lowest, done, config.iterations)
