"""Tries a few constant actions."""

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
    search_result,
)


@dataclass(frozen=True)
class LatticeConfig(PlannerConfig):
    """Attributes:
    values: How many.
    """

    values: int = 9


class LatticePlanner(Planner):
    """The best of constant plans and the start."""

    config_class = LatticeConfig
    config: LatticeConfig

    def __init__(self, dynamics: PlannableDynamics, config: LatticeConfig | None = None) -> None:
        super().__init__(dynamics, config or LatticeConfig())

    def _search(self, search: Search) -> SearchResult:
        levels = torch.linspace(-2, 2, self.config.values).to(search.start)
        constant = levels[:, None, None].expand(-1, *search.start.shape[1:])
        plans = torch.cat(
            [search.start[:, None], constant.expand(len(search.start), *constant.shape)], dim=1
        )
        plans = search.clamp(plans)
        costs, best = candidate_costs(self.dynamics, search, plans).min(dim=1)
        return search_result(plans[torch.arange(len(plans)), best], costs, 1, 1)
