"""Gauss-Newton: the planner that world models with bilinear dynamics are made for.

With plans a, endpoint z_H(a), e = z_H - z*, the objective (paper, Eq. 5) is

    L(a) = 1/2 |z_H(a) - z*|^2 + c/2 |a|^2.

Replace z_H(a + E delta) by z_H(a) + J E delta, where E spans the directions that are searched: the
environment actions of a block move together, because what they do apart is hardly visible in the
next latent and only spoils the conditioning. The minimum of the resulting quadratic is at

    [E^T J^T J E + (c + mu) I] delta = -[E^T J^T e + c E^T a],

a system of a few unknowns. The damping mu keeps it regular. Of the steps 1, 1/2, 1/4, 1/8 the
first that lowers the true objective is taken, all four being rolled out in one batch. Far from
linear it happens that none does; then shorter ones follow, because delta goes downhill and some
length must help. A plan is final when the quadratic promises, or a step brings, less than a
millionth of the cost. Bounds are kept by projecting each trial, and directions that push out of
the box are left out of the system.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.errors import InputError
from bilinear_wm.planning.base import (
    PlannableDynamics,
    Planner,
    PlannerConfig,
    Search,
    SearchResult,
    Status,
    candidate_costs,
    require,
)
from bilinear_wm.planning.kernel import Kernel, kernel_for
from bilinear_wm.planning.objective import Quadratic, Tangents
from bilinear_wm.planning.sensitivity import (
    analytic,
    coherent_lift,
    finite_difference,
    random_offsets,
)

Slopes = tuple[Tensor, Tangents]
"""Latents of some plans, and how they move with the actions."""
STEPS = (1.0, 0.5, 0.25, 0.125)
SHORTER = 3
"""How often four steps are followed by four shorter ones."""


@dataclass(frozen=True)
class GaussNewtonConfig(PlannerConfig):
    """Settings, named as in the paper's table where it has them.

    Attributes:
        effort: c.
        damping: mu.
        iterations: Largest number of them.
        tolerance: Stop when an iteration lowers the cost by less than this share of it.
        coherent: Move the environment actions of a block together; otherwise each by itself.
        refreshed_blocks: n_b, the blocks that one iteration changes, in turn; None for all.
        candidates: n_cand further plans to begin from: half along the negative gradient, half
            random around the start. The best begins.
        spread: rho, how far they lie from the start, in standard deviations of an action.
        starts: Search from this many of the best candidates, and keep the best result.
        screening: Tolerance to which several starts are searched before the best alone goes on.
        sensitivities: `analytic` where the dynamics offers tangents, else `finite-difference`.
        compiled: Use the compiled kernel where it applies.
    """

    effort: float = 0.01
    damping: float = 1e-4
    iterations: int = 40
    tolerance: float = 1e-6
    coherent: bool = True
    refreshed_blocks: int | None = None
    candidates: int = 0
    spread: float = 1.0
    starts: int = 1
    screening: float = 0.01
    sensitivities: Literal["analytic", "finite-difference"] | None = None
    compiled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require("damping", self.damping > 0, "a positive number", self)
        require("tolerance", self.tolerance >= 0, "a number that is not negative", self)
        require("screening", self.screening >= 0, "a number that is not negative", self)
        require("iterations", self.iterations >= 1, "at least 1", self)
        require("candidates", self.candidates >= 0, "a number that is not negative", self)
        require("spread", self.spread > 0, "a positive number", self)
        require("starts", 1 <= self.starts <= 1 + self.candidates, "1 to 1 + candidates", self)
        blocks = self.refreshed_blocks
        require("refreshed_blocks", blocks is None or blocks >= 1, "at least 1, or None", self)


class GaussNewtonPlanner(Planner):
    """Gauss-Newton with damping, line search and bounds; see the module's text."""

    config_class = GaussNewtonConfig
    config: GaussNewtonConfig

    def __init__(
        self, dynamics: PlannableDynamics, config: GaussNewtonConfig | None = None
    ) -> None:
        config = config or GaussNewtonConfig()
        super().__init__(dynamics, config)
        has_tangents = hasattr(dynamics, "step_jet")
        if config.sensitivities == "analytic" and not has_tangents:
            raise InputError(
                "sensitivities: expected 'finite-difference' for a dynamics without tangents "
                f"({type(dynamics).__name__}), found 'analytic'"
            )
        # Exactly bilinear, nothing added: the search then knows what it may do.
        self._bilinear = dynamics if type(dynamics) is BilinearDynamics else None
        self._differentiate = (
            finite_difference
            if config.sensitivities == "finite-difference" or not has_tangents
            else analytic
        )
        like = next(iter(dynamics.parameters()))  # type: ignore[attr-defined]
        env_size = dynamics.env_action_size if config.coherent else dynamics.action_size
        self._lift = coherent_lift(dynamics.action_size, env_size, like)
        self._kernel: Kernel | None = None
        if config.compiled and self._differentiate is analytic:
            self._kernel = kernel_for(dynamics, self._lift, config)

    def _search(self, search: Search) -> SearchResult:
        kernel = self._kernel if self._kernel and self._kernel.knows(search.objective) else None
        if kernel is not None:
            # One after the other, and still faster than a batch in torch (docs/planning.md).
            if len(search.z0) == 1:
                return kernel.search(search)
            rows = torch.arange(len(search.z0))[:, None]
            return _together([kernel.search(search.rows(row)) for row in rows])
        starts = self._starts(search)
        batch, count = starts.shape[:2]
        tolerance = self.config.tolerance
        if count == 1:
            return self._descend(search, starts[:, 0], tolerance)
        # Several starts a problem are further problems; the best of them goes on.
        rows = torch.arange(batch, device=starts.device).repeat_interleave(count)
        rough = max(self.config.screening, tolerance)
        screened = self._descend(search.rows(rows), starts.flatten(0, 1), rough)
        first = count * torch.arange(batch, device=starts.device)
        best = screened.cost.view(batch, count).argmin(-1) + first
        found = self._descend(search, screened.actions[best], tolerance)
        before = [screened.iterations[i] for i in best.tolist()]
        return replace(
            found, iterations=[a + b for a, b in zip(before, found.iterations, strict=True)]
        )

    def _descend(
        self, search: Search, actions: Float[Tensor, "batch h m"], tolerance: float
    ) -> SearchResult:
        own = not search.objective.built_in or self._bilinear is None
        if own:  # a dynamics or a cost of the user's may differentiate inside
            return self._descend_in_torch(search, actions, tolerance)
        with torch.inference_mode():  # a fifth faster than without gradients
            found = self._descend_in_torch(search, actions, tolerance)
        return replace(found, actions=found.actions.clone(), cost=found.cost.clone())

    def _descend_in_torch(
        self, search: Search, actions: Float[Tensor, "batch h m"], tolerance: float
    ) -> SearchResult:
        config, horizon = self.config, actions.shape[1]
        batch = len(actions)
        actions = actions.clone()
        cost = candidate_costs(self.dynamics, search, actions[:, None])[:, 0]
        status: list[Status] = ["max_iterations"] * batch
        iterations, quiet = [0] * batch, [0] * batch
        refreshed = min(config.refreshed_blocks or horizon, horizon)
        rounds = math.ceil(horizon / refreshed)  # iterations until every block had its turn
        rows, some = list(range(batch)), search  # problems being searched
        open_rows: slice | Tensor = slice(None)
        slopes: Slopes | None = None
        known = self._known(search)
        for iteration in range(config.iterations):
            if search.out_of_time():
                for row in rows:
                    status[row] = "deadline"
                break
            blocks, upcoming = (
                sorted((i * refreshed + place) % horizon for place in range(refreshed))
                for i in (iteration, iteration + 1)
            )
            before, plans = cost[open_rows], actions[open_rows]
            if slopes is None:
                slopes = self._slopes(some, plans, blocks, **known)
            ahead = functools.partial(self._slopes, some, blocks=upcoming, **known)
            plans, lower, slopes = self._iterate(some, plans, before, slopes, ahead, tolerance)
            small = ~(before - lower > tolerance * before)
            actions[open_rows], cost[open_rows] = plans, lower
            for row, nothing_gained in zip(rows, small.tolist(), strict=True):
                iterations[row] += 1
                quiet[row] = quiet[row] + 1 if nothing_gained else 0
                if quiet[row] >= rounds:
                    status[row] = "converged"
            going_on = [row for row in rows if status[row] != "converged"]
            if not going_on:
                break
            if len(going_on) < len(rows):
                rows, open_rows = going_on, torch.tensor(going_on, device=actions.device)
                some = search.rows(open_rows)
        for row in (~torch.isfinite(cost)).nonzero().flatten().tolist():
            status[row] = "diverged"
        return SearchResult(actions, cost, status, iterations)

    def _slopes(self, search: Search, actions: Tensor, blocks: list[int], **known: Any) -> Slopes:
        return self._differentiate(self.dynamics, search.z0, actions, self._lift, blocks, **known)

    def _known(self, search: Search) -> dict[str, Any]:
        """What all plans of a single problem share: the first step's dependence on the action."""
        single = len(search.z0) == 1 and self._differentiate is analytic
        if single and self._bilinear is not None:
            return {"first": self._bilinear.affine(search.z0[0])}
        return {}

    def _iterate(
        self,
        search: Search,
        actions: Tensor,
        cost: Tensor,
        slopes: Slopes,
        ahead: Callable[[Tensor], Slopes],
        tolerance: float,
    ) -> tuple[Float[Tensor, "batch h m"], Float[Tensor, " batch"], Slopes | None]:
        """One step for each problem; where there is nothing to gain, nothing changes.

        `ahead` gives the slopes that the next iteration needs. Returns the plans, their costs
        and, if they are known already, the slopes at them.
        """
        latents, tangents = slopes
        local = search.objective.quadratic(latents, actions, tangents)
        free = _free(search, actions, local.gradient, tangents.actions)
        delta = _solve(local, self.config.damping, free)
        step = (delta @ tangents.actions.flatten(0, 1).mT).view_as(actions)
        promised = -0.5 * (local.gradient * delta).sum(-1)
        open_rows = (promised > tolerance * cost).nonzero().squeeze(-1)
        longest = 1.0
        if len(cost) == len(open_rows) == 1 and self._differentiate is analytic:
            # A full step mostly helps: differentiate there at once instead of rolling out first.
            trial = search.clamp(actions + step)
            slopes = ahead(trial)
            value = search.objective.value(slopes[0][:, None], trial[:, None])[:, 0]
            if value < cost:
                return trial, value, slopes
            longest = 0.5
        lengths = longest * actions.new_tensor(STEPS)[:, None, None]
        actions, cost = actions.clone(), cost.clone()
        for _ in range(1 + SHORTER):
            if len(open_rows) == 0:
                break
            some = search if len(open_rows) == len(cost) else search.rows(open_rows)
            trials = search.clamp(actions[open_rows, None] + lengths * step[open_rows, None])
            costs = candidate_costs(self.dynamics, some, trials)
            lower = costs < cost[open_rows, None]
            first = lower.int().argmax(-1)
            won = lower.any(-1).nonzero().squeeze(-1)
            actions[open_rows[won]] = trials[won, first[won]]
            cost[open_rows[won]] = costs[won, first[won]]
            open_rows = open_rows[~lower.any(-1)]
            lengths = lengths * STEPS[-1] / 2
        return actions, cost, None

    def _starts(self, search: Search) -> Float[Tensor, "batch starts h m"]:
        """The best of the start and its candidates.

        Random ones are the same for every problem of a batch, so that a plan does not depend on
        its neighbours.
        """
        config = self.config
        if config.candidates == 0:
            return search.start[:, None]
        horizon = search.start.shape[1]
        blocks = list(range(horizon))
        latents, tangents = self._differentiate(
            self.dynamics, search.z0, search.start, self._lift, blocks
        )
        gradient = search.objective.quadratic(latents, search.start, tangents).gradient
        downhill = -(gradient @ tangents.actions.flatten(0, 1).mT).view_as(search.start)
        downhill = torch.nan_to_num(downhill)
        size = downhill.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-30)
        aligned = math.ceil(config.candidates / 2)
        lengths = config.spread * torch.linspace(0, 1, aligned + 1)[1:].to(downhill)
        along = (downhill / size)[:, None] * lengths[:, None, None]
        count = config.candidates - aligned
        noise = random_offsets(config, self._lift, count, horizon).to(downhill)
        offsets = torch.cat([along, noise.expand(len(along), -1, -1, -1)], dim=1)
        plans = search.clamp(search.start[:, None] + offsets)
        plans = torch.cat([search.start[:, None], plans], dim=1)
        best = (
            candidate_costs(self.dynamics, search, plans).topk(config.starts, largest=False).indices
        )
        return plans.gather(1, best[..., None, None].expand(-1, -1, *plans.shape[2:]))


def _together(found: list[SearchResult]) -> SearchResult:
    return SearchResult(
        torch.cat([one.actions for one in found]),
        torch.cat([one.cost for one in found]),
        [one.status[0] for one in found],
        [one.iterations[0] for one in found],
    )


def _free(
    search: Search, actions: Tensor, gradient: Tensor, lifts: Float[Tensor, "h m k"]
) -> Bool[Tensor, "batch k"] | None:
    """Directions in which going downhill does not press every action against its bound.

    None for all of them.
    """
    if search.low is None or search.high is None:
        return None
    at_low, at_high = actions <= search.low, actions >= search.high
    if not (at_low | at_high).any():
        return None
    downhill = -gradient[:, None, None] * lifts  # (batch, h, m, k)
    stuck_low = at_low[..., None] & (downhill < 0)
    stuck_high = at_high[..., None] & (downhill > 0)
    stuck = stuck_low | stuck_high | (lifts == 0)
    return ~stuck.all(1).all(1)


def _solve(
    local: Quadratic, damping: float, free: Bool[Tensor, "batch k"] | None
) -> Float[Tensor, "batch k"]:
    """The damped Gauss-Newton direction in the free directions; zero in the others."""
    system, downhill = local.hessian.clone(), -local.gradient
    if free is not None:
        system *= free[:, :, None] & free[:, None, :]
        downhill *= free
    system.diagonal(dim1=-2, dim2=-1).add_(damping)
    lower, _ = torch.linalg.cholesky_ex(system)
    delta = torch.cholesky_solve(downhill.unsqueeze(-1), lower).squeeze(-1)
    return torch.nan_to_num(delta, nan=0.0, posinf=0.0, neginf=0.0)
