"""MPPI: like CEM, but every sample counts, with weight exp(-cost / temperature)."""

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
class MPPIConfig(PlannerConfig):
    """Settings.

    Attributes:
        samples: Plans an iteration.
        iterations: How often the mean moves.
        std: Of the samples around the mean, in standard deviations of an action.
        temperature: In standard deviations of the samples' costs, so that it does not depend on
            the latents' scale.
        max_rows: Rollouts at once, which bounds the memory.
    """

    samples: int = 512
    iterations: int = 10
    std: float = 0.5
    temperature: float = 0.2
    max_rows: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        require("samples", self.samples >= 2, "at least 2", self)
        require("iterations", self.iterations >= 1, "at least 1", self)
        require("std", self.std > 0, "a positive number", self)
        require("temperature", self.temperature > 0, "a positive number", self)


class MPPIPlanner(Planner):
    """Returns the best of all means; environment actions of a block are sampled apart."""

    config_class = MPPIConfig
    config: MPPIConfig

    def __init__(self, dynamics: PlannableDynamics, config: MPPIConfig | None = None) -> None:
        super().__init__(dynamics, config or MPPIConfig())

    def _search(self, search: Search) -> SearchResult:
        config, start = self.config, search.start
        generator = torch.Generator().manual_seed(config.seed)
        mean = best = start
        lowest = torch.full_like(start[:, 0, 0], torch.inf)
        done = 0
        while True:
            # The mean is the first sample: its cost comes with theirs.
            noise = torch.randn(config.samples, *start.shape[1:], generator=generator).to(start)
            noise[0] = 0
            plans = search.clamp(mean[:, None] + config.std * noise)
            some = plans if done < config.iterations else plans[:, :1]
            costs = candidate_costs(self.dynamics, search, some, config.max_rows)
            better = costs[:, 0] < lowest
            best = torch.where(better[:, None, None], mean, best)
            lowest = torch.where(better, costs[:, 0], lowest)
            if done == config.iterations or search.out_of_time():
                break
            finite = torch.isfinite(costs)
            known = torch.where(finite, costs, 0.0)
            std = known.std(-1, keepdim=True).clamp_min(1e-30)
            lowest_cost = costs.amin(-1, keepdim=True)
            score = -(costs - lowest_cost) / (config.temperature * std)
            weights = torch.softmax(torch.nan_to_num(score, nan=-1e9, neginf=-1e9), dim=-1)
            mean = search.clamp((weights[..., None, None] * plans).sum(1))
            done += 1
        return search_result(best, lowest, done, config.iterations)
