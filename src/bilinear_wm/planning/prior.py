"""No search at all: the plan that the problem proposes, to measure what a search adds to it."""

from __future__ import annotations

from torch import Tensor

from bilinear_wm.errors import InputError
from bilinear_wm.planning.base import (
    Plan,
    PlannableDynamics,
    Planner,
    PlannerConfig,
    PlanProblem,
    Search,
    SearchResult,
    candidate_costs,
)


class PriorPlanner(Planner):
    """`PlanProblem.prior`, inside the box."""

    config_class = PlannerConfig

    def __init__(self, dynamics: PlannableDynamics, config: PlannerConfig | None = None) -> None:
        super().__init__(dynamics, config or PlannerConfig())

    def plan(
        self,
        problem: PlanProblem,
        *,
        warm_start: Tensor | None = None,
        deadline_s: float | None = None,
    ) -> Plan:
        """The proposal, whatever the plan before was."""
        if problem.prior is None:
            raise InputError(
                "planner prior: expected a problem with a prior, found none; "
                "add one to the model with `bwm train-prior`"
            )
        return super().plan(problem, warm_start=problem.prior, deadline_s=deadline_s)

    def _search(self, search: Search) -> SearchResult:
        cost = candidate_costs(self.dynamics, search, search.start[:, None])[:, 0]
        ends = ["converged" if ok else "diverged" for ok in cost.isfinite().tolist()]
        return SearchResult(search.start, cost, ends, [0] * len(cost))  # type: ignore[arg-type]
