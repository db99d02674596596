"""Gauss-Newton: the planner that world models with bilinear dynamics are made for.

With plans a, endpoint z_H(a), e = z_H - z*, the objective (paper, Eq. 5) is

    L(a) = 1/2 |z_H(a) - z*|^2 + c/2 |a|^2.

Replace z_H(a + E delta) by z_H(a) + J E delta, where E spans the directions that are searched: the
environment actions of a block move together, because what they do apart is hardly visible in the
next latent and only spoils the conditioning. The minimum of the resulting quadratic is at

    [E^T J^T J E + (c + mu) I] delta = -[E^T J^T e + c E^T a],

a system of a few unknowns. The damping mu keeps it regular. If the step brings three quarters of
what the quadratic promises, it is taken. Else the model bends, and damping shortens and turns the
step: of four, with 0, 1/1000, 1/100 and 1/10 of the matrix's mean diagonal added to mu, the one
that lowers the true objective most is taken. If none does, four with more damping follow, and
again: with enough of it a step goes down the gradient, and some length must help. A plan is final
when the quadratic promises, or a step brings, less than a millionth of the cost. Bounds are kept by
projecting each trial, and directions that push out of the box are left out of the system.

A search may begin from several plans. After each iteration the better half of them goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
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
from bilinear_wm.planning.compiled import CompiledSearch, compiled_search
from bilinear_wm.planning.offsets import random_offsets
from bilinear_wm.planning.sensitivity import analytic, coherent_lift, finite_difference
from bilinear_wm.planning.trials import DAMPINGS, ENOUGH, TRIALS, num_aligned


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
        candidates: n_cand further plans to begin from: half, but at most eight, along the negative
            gradient, the others random around the start. The best begins.
        spread: rho, how far they lie from the start, in standard deviations of an action.
        starts: Search from this many of the best candidates, and keep the best result.
        screening: Iterations after which the worse half of the starts is left; 0 searches all of
            them to the end.
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
    screening: int = 1
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
        env_size = dynamics.env_action_size if config.coherent else dynamics.action_size
        self._lift = coherent_lift(dynamics.action_size, env_size, self._like)
        self._kernel: CompiledSearch | None = None
        if config.compiled and self._differentiate is analytic:
            self._kernel = compiled_search(dynamics, self._lift, config)

    def _search(self, search: Search) -> SearchResult:
        kernel = self._kernel if self._kernel and self._kernel.knows(search.objective) else None
        if kernel is None:
            return self._search_in_torch(search)
        # One after the other, and still faster than a batch in torch (docs/planning.md).
        if len(search.z0) == 1:
            return kernel.search(search) or self._search_in_torch(search)
        alone = [search.rows(row) for row in torch.arange(len(search.z0))[:, None]]
        return _together([kernel.search(one) or self._search_in_torch(one) for one in alone])

    def _search_in_torch(self, search: Search) -> SearchResult:
        if not search.objective.built_in or self._bilinear is None:
            return self._halve(search)  # a dynamics or a cost of the user's may differentiate
        with torch.inference_mode():  # a fifth faster than without gradients
            found = self._halve(search)
        return replace(found, actions=found.actions.clone(), cost=found.cost.clone())

    def _halve(self, search: Search) -> SearchResult:
        """Iterate from several starts, with fewer and fewer of them; the best is the result."""
        config, batch = self.config, len(search.z0)
        actions, cost = self._starts(search)
        none = torch.zeros(cost.numel(), dtype=torch.long, device=cost.device)
        plans = _Plans(actions.flatten(0, 1), cost.flatten(), none, none.clone())
        rows, in_time = torch.arange(batch, device=cost.device), True

        def best(count: int) -> None:
            """Keep that many plans a problem."""
            nonlocal plans
            each = len(plans.cost) // batch
            order = plans.cost.view(batch, each).argsort(dim=-1, stable=True)[:, :count]
            plans = plans.rows((order + each * rows[:, None]).flatten())

        while config.screening and in_time and (count := len(plans.cost) // batch) > 1:
            some = search.rows(rows.repeat_interleave(count))
            in_time = self._descend(some, plans, config.screening)
            if in_time:
                best(count // 2)
        if in_time:
            some = search.rows(rows.repeat_interleave(len(plans.cost) // batch))
            in_time = self._descend(some, plans, config.iterations)
        best(1)
        rounds, status = self._rounds(search), []
        for value, quiet in zip(plans.cost.tolist(), plans.quiet.tolist(), strict=True):
            end: Status = "max_iterations" if in_time else "deadline"
            end = "converged" if quiet >= rounds else end
            status.append(end if math.isfinite(value) else "diverged")
        return SearchResult(plans.actions, plans.cost, status, plans.iterations.tolist())

    def _rounds(self, search: Search) -> int:
        """Iterations until every block had its turn."""
        horizon = search.start.shape[1]
        return math.ceil(horizon / min(self.config.refreshed_blocks or horizon, horizon))

    def _descend(self, search: Search, plans: _Plans, count: int) -> bool:
        """Up to `count` iterations from each plan, in place; False if the deadline came first."""
        config, horizon = self.config, search.start.shape[1]
        refreshed = min(config.refreshed_blocks or horizon, horizon)
        known = self._known(search)
        for _ in range(count):
            going_on = (plans.quiet < self._rounds(search)) & torch.isfinite(plans.cost)
            going_on &= plans.iterations < config.iterations
            index = going_on.nonzero().squeeze(-1)
            if len(index) == 0:
                break
            if search.out_of_time():
                return False
            done = int(plans.iterations[index[0]])  # those that go on are equally far
            blocks = sorted((done * refreshed + place) % horizon for place in range(refreshed))
            some = search if len(index) == len(plans.cost) else search.rows(index)
            before = plans.cost[index]
            actions, cost = self._iterate(some, plans.actions[index], before, blocks, known)
            gained = before - cost > config.tolerance * before
            plans.actions[index], plans.cost[index] = actions, cost
            plans.iterations[index] += 1
            plans.quiet[index] = torch.where(gained, 0, plans.quiet[index] + 1)
        return True

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
        blocks: list[int],
        known: dict[str, Any],
    ) -> tuple[Float[Tensor, "batch h m"], Float[Tensor, " batch"]]:
        """One step for each problem; where there is nothing to gain, nothing changes."""
        config = self.config
        latents, tangents = self._differentiate(
            self.dynamics, search.z0, actions, self._lift, blocks, **known
        )
        local = search.objective.quadratic(latents, actions, tangents)
        hessian = local.hessian.expand(len(cost), -1, -1)
        scale = hessian.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None]
        free = _free(search, actions, local.gradient, tangents.actions)
        downhill = -local.gradient
        if free is not None:
            hessian = hessian * (free[:, :, None] & free[:, None, :])
            downhill = downhill * free
        lift = tangents.actions.flatten(0, 1).mT
        index = torch.arange(len(cost), device=cost.device)  # of those without a step
        chosen, lowest = actions.clone(), cost.clone()
        first, *further = torch.tensor(DAMPINGS).to(cost).split((1, TRIALS - 1, TRIALS, TRIALS))
        for relative in (first, *further):
            damping = config.damping + scale[index] * relative
            delta = _solve(hessian[index], downhill[index], damping)
            if relative is first:
                promised = 0.5 * (downhill * delta[:, 0]).sum(-1)
                worth = (promised > config.tolerance * cost).nonzero().squeeze(-1)
                index, delta = index[worth], delta[worth]
            if len(index) == 0:
                break
            some = search if len(index) == len(cost) else search.rows(index)
            step = (delta @ lift).view(len(index), -1, *actions.shape[1:])
            trials = search.clamp(actions[index, None] + step)
            costs, best = candidate_costs(self.dynamics, some, trials).min(-1)
            won = (costs < lowest[index]).nonzero().squeeze(-1)
            chosen[index[won]] = trials[won, best[won]]
            lowest[index[won]] = costs[won]
            gained = cost[index] - lowest[index]
            enough = ENOUGH * promised[index] if relative is first else 0.0
            index = index[~((gained >= enough) & (gained > 0))]
        return chosen, lowest

    def _starts(
        self, search: Search
    ) -> tuple[Float[Tensor, "batch starts h m"], Float[Tensor, "batch starts"]]:
        """The best of the start and its candidates, and what they cost.

        Random ones are the same for every problem of a batch, so that a plan does not depend on
        its neighbours.
        """
        config, plans = self.config, search.start[:, None]
        if config.candidates > 0:
            plans = torch.cat([plans, self._candidates(search)], dim=1)
        costs = candidate_costs(self.dynamics, search, plans)
        best = costs.argsort(dim=-1, stable=True)[:, : config.starts]
        chosen = best[..., None, None].expand(-1, -1, *plans.shape[2:])
        return plans.gather(1, chosen), costs.gather(1, best)

    def _candidates(self, search: Search) -> Float[Tensor, "batch candidates h m"]:
        config, horizon = self.config, search.start.shape[1]
        blocks = list(range(horizon))
        latents, tangents = self._differentiate(
            self.dynamics, search.z0, search.start, self._lift, blocks
        )
        gradient = search.objective.quadratic(latents, search.start, tangents).gradient
        downhill = -(gradient @ tangents.actions.flatten(0, 1).mT).view_as(search.start)
        downhill = torch.nan_to_num(downhill)
        size = downhill.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-30)
        aligned = num_aligned(config.candidates)
        lengths = config.spread * torch.linspace(0, 1, aligned + 1)[1:].to(downhill)
        along = (downhill / size)[:, None] * lengths[:, None, None]
        count = config.candidates - aligned
        noise = random_offsets(config, self._lift, count, horizon).to(downhill)
        offsets = torch.cat([along, noise.expand(len(along), -1, -1, -1)], dim=1)
        return search.clamp(search.start[:, None] + offsets)


@dataclass
class _Plans:
    """Plans on their way: what they cost, and how far they are."""

    actions: Float[Tensor, "plans h m"]
    cost: Float[Tensor, " plans"]
    iterations: Int[Tensor, " plans"]
    quiet: Int[Tensor, " plans"]
    """Iterations in a row that gained little."""

    def rows(self, index: Int[Tensor, " some"]) -> _Plans:
        return _Plans(
            self.actions[index], self.cost[index], self.iterations[index], self.quiet[index]
        )


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
    hessian: Float[Tensor, "batch k k"],
    downhill: Float[Tensor, "batch k"],
    damping: Float[Tensor, "batch trials"],
) -> Float[Tensor, "batch trials k"]:
    """The damped Gauss-Newton directions; zero where the system has no answer."""
    eye = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
    lower, _ = torch.linalg.cholesky_ex(hessian[:, None] + damping[..., None, None] * eye)
    right = downhill[:, None, :, None].expand(-1, damping.shape[1], -1, -1)
    delta = torch.cholesky_solve(right, lower).squeeze(-1)
    return torch.nan_to_num(delta, nan=0.0, posinf=0.0, neginf=0.0)
