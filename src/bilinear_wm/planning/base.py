"""What every planner takes and gives: a problem in latent space, a plan, and a promise.

    planner = GaussNewtonPlanner(model.dynamics)
    plan = planner.plan(PlanProblem(z0=z, z_goal=z_goal, horizon=5))

Whatever comes in, `plan.actions` are finite, of the right shape, inside the box, and never cost
more than what the search started from. Planners keep nothing between calls: a call is a function
of its arguments and the configuration, so that threads may share a planner.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bilinear_wm.errors import InputError
from bilinear_wm.planning.kernel import STATUSES, Status
from bilinear_wm.planning.objective import Effort, Objective, Reach, Smoothness
from bilinear_wm.planning.problem import PlannableDynamics, PlannerConfig, PlanProblem, require

__all__ = [
    "STATUSES", "Plan", "PlanProblem", "PlannableDynamics", "Planner", "PlannerConfig", "Search",
    "SearchResult", "Status", "candidate_costs", "require", "search_result",
]  # fmt: skip

LARGEST = 1e12
"""Numbers beyond this are taken for garbage: their squares overflow single precision soon."""


@dataclass(frozen=True)
class Plan:
    """What to do, and what the model expects of it. Batched like its problem."""

    actions: Float[Tensor, "*batch h m"]
    """Blocks of model actions."""
    latents: Float[Tensor, "*batch h+1 d"]
    """Predictions, the present first."""
    cost: Float[Tensor, "*batch"]
    """The objective; infinite where the model overflows, NaN after bad input."""
    status: Status | tuple[Status, ...]
    iterations: int | tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Search:
    """A checked problem, ready to be searched: `batch` problems with everything they need."""

    z0: Float[Tensor, "batch d"]
    objective: Objective
    start: Float[Tensor, "batch h m"]
    """Where to begin, inside the box."""
    low: Float[Tensor, " m"] | None
    high: Float[Tensor, " m"] | None
    stop_at: float
    """On the clock of `time.perf_counter`."""

    def clamp(self, actions: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """The nearest actions in the box."""
        return actions if self.low is None else actions.clamp(self.low, self.high)

    def out_of_time(self) -> bool:
        return time.perf_counter() >= self.stop_at

    def iterations(self, limit: int) -> Iterator[int]:
        """1, 2, ... up to the limit, or until the deadline."""
        for number in range(1, limit + 1):
            if self.out_of_time():
                return
            yield number

    def rows(self, index: Int[Tensor, " rows"]) -> Search:
        """Some of the problems."""
        return replace(
            self,
            z0=self.z0[index],
            objective=self.objective.rows(index),
            start=self.start[index],
        )


@dataclass(frozen=True)
class SearchResult:
    """The best plans of a search, with how it ended for each."""

    actions: Float[Tensor, "batch h m"]
    cost: Float[Tensor, " batch"]
    status: Sequence[Status]
    iterations: Sequence[int]
    latents: Float[Tensor, "batch h+1 d"] | None = None
    """What the search predicted for them, if it kept that."""


class Planner(abc.ABC):
    """Checks problems and keeps the promise; a kind of planner only searches."""

    config_class: ClassVar[type[PlannerConfig]]
    """What the second argument is; options are checked against its fields."""

    def __init__(self, dynamics: PlannableDynamics, config: PlannerConfig) -> None:
        for name in ("latent_size", "action_size", "env_action_size", "rollout"):
            if not hasattr(dynamics, name):
                raise InputError(
                    f"dynamics: expected a model's dynamics with `{name}`, "
                    f"found {type(dynamics).__name__}; pass model.dynamics"
                )
        if dynamics.env_action_size < 1 or dynamics.action_size % dynamics.env_action_size:
            raise InputError(
                f"dynamics: expected blocks of whole actions, found {dynamics.action_size} numbers "
                f"a block and {dynamics.env_action_size} an action"
            )
        self.dynamics, self.config = dynamics, config
        self._like = next(iter(dynamics.parameters()))  # type: ignore[attr-defined]

    @abc.abstractmethod
    def _search(self, search: Search) -> SearchResult:
        """Look for good plans; `search.start` is one to beat."""

    @torch.no_grad()
    def plan(
        self,
        problem: PlanProblem,
        *,
        warm_start: Tensor | None = None,
        deadline_s: float | None = None,
    ) -> Plan:
        """Plan a problem or a batch of them.

        Args:
            problem: What to reach.
            warm_start: Blocks to begin from, (horizon, m) with the problem's batch axis if any:
                usually the rest of the previous plan. It is also what comes back when latents or
                goal are not finite (else zeros), with status `bad_input`.
            deadline_s: Return the best plan found after this many seconds (status `deadline`).
        """
        begun = time.perf_counter()
        z0, goal, path, start, low, high = self._tensors(problem, warm_start)
        prior = start
        if problem.prior is not None:
            prior = self._blocks("prior", problem, problem.prior, like=start)
        # Few operations on small tensors: each takes microseconds, and fast planners feel them.
        parts = [z0, goal, start]
        parts += [path] if problem.path is not None else []
        parts += [prior] if problem.prior is not None else []
        usable = _sane(*parts)
        everything = len(usable) > 0 and bool(usable.all())
        if not everything:
            start = torch.where(_sane(start)[:, None, None], start, 0.0)
        if low is not None:
            start = start.clamp(low, high)
        stop_at = torch.inf if deadline_s is None else begun + deadline_s
        objective = self._objective(problem, goal, path)
        search = Search(z0, objective, start, low, high, stop_at)
        found = self._search(search) if everything else self._search_some(search, usable)
        latents = found.latents
        if latents is None:
            latents = self.dynamics.rollout(z0, found.actions)
        seconds = time.perf_counter() - begun
        if problem.z0.ndim == 1:
            (status,), (iterations,) = found.status, found.iterations
            return Plan(found.actions[0], latents[0], found.cost[0], status, iterations, seconds)
        return Plan(
            found.actions,
            latents,
            found.cost,
            tuple(found.status),
            tuple(found.iterations),
            seconds,
        )

    def _search_some(self, search: Search, usable: Bool[Tensor, " batch"]) -> SearchResult:
        """Search the usable problems; the others get their start back."""
        actions, cost = search.start.clone(), search.z0.new_full((len(usable),), torch.nan)
        status: list[Status] = ["bad_input"] * len(usable)
        iterations = [0] * len(usable)
        rows = usable.nonzero().squeeze(-1)
        if len(rows):
            found = self._search(search.rows(rows))
            actions[rows], cost[rows] = found.actions, found.cost
            for place, row in enumerate(rows.tolist()):
                status[row], iterations[row] = found.status[place], found.iterations[place]
        return SearchResult(actions, cost, status, iterations)

    def _tensors(
        self, problem: PlanProblem, warm_start: Tensor | None
    ) -> tuple[
        Float[Tensor, "batch d"],
        Float[Tensor, "batch d"],
        Float[Tensor, "batch h d"],
        Float[Tensor, "batch h m"],
        Float[Tensor, " m"] | None,
        Float[Tensor, " m"] | None,
    ]:
        """Everything in the dynamics' dtype and device, with a batch axis."""
        d, m, h = self.dynamics.latent_size, self.dynamics.action_size, problem.horizon
        if problem.z0.shape[-1] != d:
            raise InputError(
                f"z0, z_goal: expected latents of {d} numbers, found {problem.z0.shape[-1]}"
            )
        like = self._like
        z0 = problem.z0.to(like).view(-1, d)
        goal = z0 if problem.z_goal is None else problem.z_goal.to(like).view(-1, d)
        path = goal[:, None].expand(-1, h, -1)
        if problem.path is not None:
            path = problem.path.to(like).view(-1, h, d)
        begin = problem.prior if warm_start is None else warm_start
        name = "prior" if warm_start is None else "warm_start"
        start = self._blocks(name, problem, begin, like=z0.new_zeros(len(z0), h, m))
        low, high = problem.action_low, problem.action_high
        if low is None or high is None:
            return z0, goal, path, start, None, None
        if len(low) != m:
            raise InputError(
                f"action_low, action_high: expected {m} numbers, found {len(low)}; "
                "model.action_bounds makes them from the environment's"
            )
        return z0, goal, path, start, low.to(like), high.to(like)

    def _blocks(
        self, name: str, problem: PlanProblem, given: Tensor | None, like: Tensor
    ) -> Float[Tensor, "batch h m"]:
        """Blocks of actions that were given, or rest."""
        if given is None:
            return torch.zeros_like(like)
        shape = (*problem.z0.shape[:-1], *like.shape[1:])
        if given.shape != shape:
            raise InputError(f"{name}: expected shape {shape}, found {tuple(given.shape)}")
        return given.to(like).view_as(like)

    def _objective(
        self,
        problem: PlanProblem,
        goal: Float[Tensor, "batch d"],
        path: Float[Tensor, "batch h d"],
    ) -> Objective:
        config = self.config
        terms = list(problem.terms)
        if problem.z_goal is not None:
            targets = torch.cat([path[:, :-1], goal[:, None]], dim=1)
            weights = (config.path_weight,) * (problem.horizon - 1) + (config.goal_weight,)
            terms.insert(0, Reach(targets, weights))
        if config.effort:
            about = problem.prior
            if about is not None:
                about = about.to(goal).view(len(goal), *about.shape[-2:])
            terms.append(Effort(config.effort, about))
        if config.smoothness:
            terms.append(Smoothness(config.smoothness, self.dynamics.env_action_size))
        return Objective(tuple(terms))


def candidate_costs(
    dynamics: PlannableDynamics,
    search: Search,
    candidates: Float[Tensor, "batch samples h m"],
    max_rows: int = 2048,
) -> Float[Tensor, "batch samples"]:
    """The cost of several plans a problem, a bounded number of rollouts at a time."""
    batch, samples = candidates.shape[:2]
    problems_at_once = max(max_rows // samples, 1)
    costs = []
    for rows in torch.arange(batch, device=candidates.device).split(problems_at_once):
        some = search if len(rows) == batch else search.rows(rows)
        parts = []
        for plans in candidates[rows].split(max_rows, dim=1):
            z0 = some.z0[:, None].expand(-1, plans.shape[1], -1)
            parts.append(some.objective.value(dynamics.rollout(z0, plans), plans))
        costs.append(torch.cat(parts, dim=1))
    return torch.cat(costs)


def search_result(
    actions: Float[Tensor, "batch h m"], cost: Float[Tensor, " batch"], done: int, limit: int
) -> SearchResult:
    """Of a search whose problems all ended alike, but for overflow, after `done` iterations."""
    status: Status = "max_iterations" if done >= limit else "deadline"
    ends: list[Status] = [
        status if finite else "diverged" for finite in torch.isfinite(cost).tolist()
    ]
    return SearchResult(actions, cost, ends, [done] * len(actions))


def _sane(*parts: Float[Tensor, "batch ..."]) -> Bool[Tensor, " batch"]:
    """Which rows are finite and of a size that a model can have produced."""
    rows = torch.cat([part.flatten(1) for part in parts], dim=1)
    return torch.linalg.vector_norm(rows, torch.inf, dim=1) < LARGEST
