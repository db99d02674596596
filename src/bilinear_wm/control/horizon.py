"""How far to plan, when to plan again, and what is remembered from plan to plan.

Executing a whole plan before the next one is the paper's way. Executing less of it needs care: a
plan of five blocks uses all five to arrive, so starting a new plan of five after each block never
arrives. There are two ways out. The plans that continue another look ahead shorter by what has
passed, until it is used up and the next begins at full length (`arrive="plan"`). Or, where the time
is limited, plans keep their length until less than that is left, and arrive at its end
(`arrive="deadline"`): later, and better where things must first be brought about.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from jaxtyping import Float
from torch import Tensor

from bilinear_wm.errors import InputError, check_choices
from bilinear_wm.observation import Seen

PROGRESS = 0.5
"""What a plan must leave of the goal's distance at most, or the next one gets more time."""
Arrive = Literal["plan", "deadline"]
Late = Literal["drop", "keep"]
Replan = Literal["always", "exhausted"] | int


@dataclass(frozen=True)
class LoopConfig:
    """How a loop plans. The defaults are those of the real-time controller.

    Attributes:
        horizon: Blocks a plan looks ahead when it begins.
        replan: Begin the next plan `always`, from every new observation; when the last is
            `exhausted`; or after so many of its blocks.
        arrive: When a plan that continues another ends: with that one, or as late as the time that
            is left allows (without a limit all plans have full length).
        late: What becomes of a late plan's first actions, as many as were executed while it was
            made: `drop` them, unless that would be all, or `keep` them.
        warm_start: Begin plans that continue another from its rest.
        limited: No plan that arrives with another looks beyond the time that is left: it would be
            cut off on its way.
        max_horizon: Give plans twice the time, up to this, when those before used theirs up without
            halving the latent distance to the goal: past an obstacle the way may be long. A new
            goal begins with `horizon` again. By default all get the same.
    """

    horizon: int = 5
    replan: Replan = "always"
    arrive: Arrive = "plan"
    late: Late = "drop"
    warm_start: bool = True
    limited: bool = False
    max_horizon: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("horizon", "max_horizon"):
            blocks = getattr(self, name)
            if blocks is not None and (not isinstance(blocks, int) or blocks < 1):
                raise InputError(f"{name}: expected at least one block, found {blocks}")
        if self.longest < self.horizon:
            raise InputError(
                f"max_horizon: expected at least {self.horizon} (the horizon), "
                f"found {self.max_horizon}"
            )
        if isinstance(self.replan, int) and not 1 <= self.replan <= self.horizon:
            raise InputError(
                f"replan_every: expected 1 to {self.horizon} blocks (the horizon), "
                f"found {self.replan}"
            )

    @property
    def longest(self) -> int:
        """Blocks that a plan looks ahead at most."""
        return self.horizon if self.max_horizon is None else self.max_horizon


@dataclass(frozen=True)
class Course:
    """What one loop remembers from plan to plan. Each plan makes a new one and changes none.

    Attributes:
        config: Settings of the loop.
        frame_skip: Ticks a block.
        begun: The tick at which the plans now continued began.
        ahead: Blocks that the first of them looked ahead.
        distance: How far the goal was then.
        made: The tick at which the newest was made.
        horizon: Blocks that it looks ahead.
        start: What it began from, if not from rest.
        blocks: The newest plan; None where nothing is continued.
        known: What was encoded before and may be needed again, with its latent.
    """

    config: LoopConfig
    frame_skip: int
    begun: int = 0
    ahead: int = 1
    distance: float = math.inf
    made: int = 0
    horizon: int = 1
    start: Float[Tensor, "left m"] | None = None
    blocks: Float[Tensor, "h m"] | None = None
    known: tuple[tuple[Seen, Tensor], ...] = ()

    def afresh(self) -> Self:
        """Everything forgotten but what pictures look like."""
        return type(self)(self.config, self.frame_skip, known=self.known)

    def next(self, tick: int, distance: float, new_goal: bool, ticks_left: int | None) -> Self:
        """The course of a plan that begins now, as yet without the plan.

        Args:
            tick: The next tick.
            distance: Between the latents now and of the goal.
            new_goal: Whether the goal is another than the last plan's.
            ticks_left: That may still be executed, where that is limited.
        """
        course, config = self, self.config
        if new_goal:
            course = replace(course, ahead=min(self.ahead, config.horizon), distance=math.inf)
        horizon, start = course.ahead, None
        if config.arrive == "plan":
            horizon -= (tick - course.begun) // self.frame_skip
        if course.blocks is None or horizon < 1:  # begin anew
            stuck = distance > PROGRESS * course.distance
            horizon = min(2 * course.ahead, config.longest) if stuck else config.horizon
            course = replace(course, begun=tick, ahead=horizon, distance=distance, blocks=None)
        if ticks_left is not None and config.arrive == "deadline":
            horizon = min(horizon, max(-(-ticks_left // self.frame_skip), 1))
        elif ticks_left is not None and config.limited:  # whole blocks only
            horizon = min(horizon, max(ticks_left // self.frame_skip, 1))
        if config.warm_start and course.blocks is not None:
            passed = (tick - course.made) // self.frame_skip
            if config.arrive == "plan":  # plans that arrive together end together
                passed = max(len(course.blocks) - horizon, 0)
            start = course.blocks[passed : passed + horizon]
        return replace(course, made=tick, horizon=horizon, start=start, blocks=None)
