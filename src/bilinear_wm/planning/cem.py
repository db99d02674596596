"""Cross-entropy method: sample plans, keep the best, sample around them (paper, Appendix B.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

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
class CEMConfig(PlannerConfig):
    """Settings; the defaults are the baselines'.

    Attributes:
        samples: Plans an iteration.
        elites: The best of them, which the next distribution fits.
        iterations: How often.
        initial_std: Of the first distribution, in standard deviations of an action.
        returns: `best` plan found, or the `mean` of the last elites as the baselines do (unless
            it costs more than the start).
        max_rows: Rollouts at once, which bounds the memory.
    """

    samples: int = 300
    elites: int = 30
    iterations: int = 30
    initial_std: float = 1.0
    returns: Literal["best", "mean"] = "best"
    max_rows: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        require("samples", self.samples >= 2, "at least 2", self)
        require("elites", 1 <= self.elites <= self.samples, "1 to samples", self)
        require("iterations", self.iterations >= 1, "at least 1", self)
        require("initial_std", self.initial_std > 0, "a positive number", self)
        require("max_rows", self.max_rows >= 1, "at least 1", self)


class CEMPlanner(Planner):
    """CEM with a diagonal Gaussian.

    The noise is the same for every problem of a batch, so that a plan does not depend on its
    neighbours.
    """

    config_class = CEMConfig
    config: CEMConfig

    def __init__(self, dynamics: PlannableDynamics, config: CEMConfig | None = None) -> None:
        super().__init__(dynamics, config or CEMConfig())

    def _noise(
        self, count: int, horizon: int, generator: torch.Generator
    ) -> Float[Tensor, "count h m"]:
        return torch.randn(count, horizon, self.dynamics.action_size, generator=generator)

    def _kept(
        self,
        mean: Float[Tensor, "batch h m"],
        elites: Float[Tensor, "batch elites h m"] | None,
    ) -> Float[Tensor, "batch kept h m"]:
        """Plans that join the population as they are; the first `elites` are the best."""
        return mean[:, None][:, :0]

    def _search(self, search: Search) -> SearchResult:
        config, start = self.config, search.start
        batch, horizon, _ = start.shape
        generator = torch.Generator().manual_seed(config.seed)
        mean, std = start, torch.full_like(start, config.initial_std)
        best = start
        lowest = candidate_costs(self.dynamics, search, start[:, None], config.max_rows)[:, 0]
        elites = None
        rows, done = torch.arange(batch, device=start.device), 0
        for done in search.iterations(config.iterations):  # noqa: B007  (counted beyond it)
            kept = self._kept(mean, elites)
            noise = self._noise(config.samples - kept.shape[1], horizon, generator).to(start)
            plans = torch.cat([kept, mean[:, None] + std[:, None] * noise], dim=1)
            plans = search.clamp(plans)
            costs = candidate_costs(self.dynamics, search, plans, config.max_rows)
            cheapest, order = costs.topk(config.elites, largest=False)
            elites = plans[rows[:, None], order]
            better = cheapest[:, 0] < lowest
            best = torch.where(better[:, None, None], elites[:, 0], best)
            lowest = torch.where(better, cheapest[:, 0], lowest)
            usable = torch.isfinite(cheapest[:, -1])[:, None, None]
            mean = torch.where(usable, elites.mean(1), mean)
            std = torch.where(usable, elites.std(1, correction=0), std)
        if config.returns == "mean":
            cost = candidate_costs(self.dynamics, search, mean[:, None], config.max_rows)[:, 0]
            initial = candidate_costs(self.dynamics, search, start[:, None], config.max_rows)[:, 0]
            good = cost <= initial
            best = torch.where(good[:, None, None], mean, start)
            lowest = torch.where(good, cost, initial)
        return search_result(best, lowest, done, config.iterations)
