"""Receding horizon: plan, execute some blocks, look again, plan again.

Executing a whole plan before the next one is the paper's way. Executing less of it needs care: a
plan of five blocks uses all five to arrive, so starting a new plan of five after each block never
arrives. There are two ways out. The horizon becomes shorter by what was executed, until the plan is
used up and the next begins at full length (`arrive="plan"`). Or, where the time is limited, plans
keep their length until less than that is left, and arrive at its end (`arrive="deadline"`): later,
and better where things must first be brought about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from bilinear_wm.errors import InputError, check_choices
from bilinear_wm.planning.base import Planner, PlanProblem, Status


@dataclass(frozen=True)
class MPCConfig:
    """How far to plan and how much of it to execute.

    Attributes:
        horizon: Blocks a plan looks ahead.
        replan_every: Blocks executed before the next plan; None for the whole plan.
        arrive: When a plan that continues another ends: with that one, or as late as the time that
            is left allows.
    """

    horizon: int = 5
    replan_every: int | None = None
    arrive: Literal["plan", "deadline"] = "plan"

    def __post_init__(self) -> None:
        check_choices(self)
        if self.horizon < 1:
            raise InputError(f"horizon: expected at least one block, found {self.horizon}")
        if self.replan_every is not None and not 1 <= self.replan_every <= self.horizon:
            raise InputError(
                f"replan_every: expected 1 to {self.horizon} blocks (the horizon), "
                f"found {self.replan_every}"
            )


class RecedingHorizon:
    """What one episode remembers from plan to plan."""

    def __init__(self, config: MPCConfig) -> None:
        self.config = config
        self.restart()

    def restart(self) -> None:
        """Forget: the next plan begins at full length from nothing."""
        self.horizon = self.config.horizon
        """Blocks that the next plan looks ahead."""
        self.rest: Tensor | None = None
        """What is left of the last plan, (blocks, m)."""

    def accept(self, actions: Float[Tensor, "h m"]) -> Float[Tensor, "executed m"]:
        """Take a plan of `horizon` blocks; returns those to execute now."""
        count = min(self.config.replan_every or self.horizon, self.horizon)
        left = self.horizon - count
        self.rest = actions[count:] if left else None
        keeps = self.config.arrive == "plan" and left
        self.horizon = left if keeps else self.config.horizon
        return actions[:count]

    def limit(self, blocks_left: int) -> None:
        """No plan reaches beyond the time that is left."""
        self.horizon = min(self.horizon, max(blocks_left, 1))

    def warm_start(self, like: Tensor, action_size: int) -> Float[Tensor, "h m"]:
        """The rest of the last plan, followed by rest."""
        start = like.new_zeros(self.horizon, action_size)
        if self.rest is not None:
            kept = self.rest[: self.horizon]
            start[: len(kept)] = kept
        return start


@dataclass(frozen=True)
class Move:
    """What one episode does next."""

    blocks: Float[Tensor, "executed m"]
    latents: Float[Tensor, "executed d"]
    """What the model expects after each of them."""
    status: Status


def plan_together(
    planner: Planner,
    episodes: Sequence[RecedingHorizon],
    z0: Float[Tensor, "episodes d"],
    z_goal: Float[Tensor, "episodes d"],
    bounds: tuple[Tensor, Tensor] | None = None,
) -> list[Move]:
    """Plan for many episodes, in one batch for each horizon among them."""
    low, high = bounds if bounds is not None else (None, None)
    moves: dict[int, Move] = {}
    for horizon in sorted({episode.horizon for episode in episodes}):
        chosen = [i for i, episode in enumerate(episodes) if episode.horizon == horizon]
        warm = [episodes[i].warm_start(z0, planner.dynamics.action_size) for i in chosen]
        problem = PlanProblem(z0[chosen], z_goal[chosen], horizon, low, high)
        plan = planner.plan(problem, warm_start=torch.stack(warm))
        for place, i in enumerate(chosen):
            blocks = episodes[i].accept(plan.actions[place])
            latents = plan.latents[place, 1 : len(blocks) + 1]
            moves[i] = Move(blocks, latents, plan.status[place])  # type: ignore[arg-type]
    return [moves[i] for i in range(len(episodes))]
