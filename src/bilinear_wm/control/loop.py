"""Observe, plan, act: the one loop, without threads and without a clock.

`Loop` knows what is seen, wanted and planned, and decides ticks. `step_together` runs loops on
simulated time, where a plan may take a number of ticks; `realtime.py` adds threads and a clock.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from bilinear_wm.control.box import Action, action_box
from bilinear_wm.control.horizon import Course, LoopConfig
from bilinear_wm.control.monitor import Block, Trail
from bilinear_wm.errors import InputError
from bilinear_wm.observation import Seen, is_finite
from bilinear_wm.planning.base import Plan

log = logging.getLogger(__name__)

Source = Literal["plan", "best-so-far", "rest", "hold"]


@dataclass(frozen=True)
class Tick:
    """What one tick decided."""

    index: int
    time: float
    late_s: float
    """How long after it was due."""
    source: Source
    reason: str
    """Why it holds; empty otherwise."""
    action: Action


@dataclass(frozen=True)
class Job:
    """Something to plan."""

    seen: Seen
    goal: Seen
    number: int
    """Of the observation."""
    tick: int
    """Number of the next tick."""
    executed: int
    """Planned actions that were executed before it."""
    course: Course
    """What is remembered of the plans before."""
    ticks_left: int | None = None
    """Ticks until the budget ends."""
    blocks: tuple[Block, ...] = ()
    """What happened since the last job."""
    anchor: Seen | None = None
    """Where the next block begins."""


@dataclass(frozen=True)
class Delivery:
    """A plan for one loop, and what it cost."""

    actions: Action
    """Raw, one row a tick."""
    plan: Plan
    """In the model's units."""
    course: Course
    encode_seconds: float = 0.0
    """Its share of encoding for several loops."""
    plan_seconds: float = 0.0
    alarms: int = 0
    """Blocks that the model does not explain."""
    disagreement: float | None = None
    """Of the newest block, if there was one to look at."""


class Loop:
    """What is seen, wanted and planned; decides ticks.

    Args:
        config: When and how far to plan.
        action_low: Smallest action, one number an entry.
        action_high: Largest action.
        frame_skip: Ticks a block.
        budget: Ticks in all, where they are limited.
        hold: What holding means; zeros by default.
        max_age_s: Observations older than this are stale.
        watched: Whether a monitor wants to see blocks end.
    """

    def __init__(
        self,
        config: LoopConfig,
        action_low: Action,
        action_high: Action,
        frame_skip: int,
        budget: int | None = None,
        hold: ArrayLike | None = None,
        max_age_s: float = math.inf,
        watched: bool = False,
    ) -> None:
        self._low, self._high = action_box(action_low, action_high, len(action_low))
        wanted = np.zeros_like(self._low) if hold is None else np.asarray(hold, np.float32)
        if wanted.shape != self._low.shape or not np.isfinite(wanted).all():
            raise InputError(f"hold: expected {self._low.size} finite numbers, found {hold!r}")
        if not max_age_s > 0:
            raise InputError(f"max_age_s: expected more than 0, found {max_age_s}")
        self._hold = np.clip(wanted, self._low, self._high)
        self.config, self._skip, self._budget = config, frame_skip, budget
        self._max_age_s, self._watched = max_age_s, watched
        self._seen: Seen | None = None
        self._goal: Seen | None = None
        self._seen_at = -math.inf
        self._problem = "no observation"
        self._observations = self._planned = self._valid_from = 0
        self._ticks = self._executed = self._of_plan = 0
        self._queue: deque[Action] = deque()
        self._arrived: Source | None = None
        self._coming: tuple[int, Job, Delivery] | None = None
        self._course = Course(config, frame_skip)
        self._trail = Trail(frame_skip)
        self.sources: Counter[str] = Counter()
        """How often each source was used."""
        self.reasons: Counter[str] = Counter()
        """Why it held, and how often."""
        self.last: Delivery | None = None
        """The newest plan."""
        self.failures = 0
        """Plans that ended in an exception or were not finite."""
        self.last_error: BaseException | None = None

    # Observing.

    def observe(self, seen: Seen, at: float = 0.0) -> None:
        """Take what is seen at a time; what is not finite is reported, not planned from."""
        finite = is_finite(seen)
        self._seen, self._seen_at = (seen if finite else None), at
        self._problem = "" if finite else "observation is not finite"
        self._observations += 1
        self._trail.observe(self._seen)

    def set_goal(self, goal: Seen) -> None:
        if not is_finite(goal):
            raise InputError("goal: expected finite numbers, found some that are not")
        self._goal = goal

    # Planning.

    @property
    def wants_plan(self) -> bool:
        """Whether it is time to begin a plan."""
        every = self.config.replan
        due = isinstance(every, int) and self._of_plan >= every * self._skip
        return self._coming is None and (due or every == "always" or not self._queue)

    @property
    def wants_look(self) -> bool:
        """Whether it is time to observe: for a plan, or for the monitor at the end of a block."""
        return self.wants_plan or (self._watched and self._trail.block_ends)

    @property
    def ready(self) -> bool:
        """Whether it is time, and there is something new to plan from."""
        seen = self._seen is not None and self._goal is not None
        return seen and self._planned != self._observations and self.wants_plan

    def next_job(self) -> Job | None:
        """Something worth planning, if there is."""
        if not self.ready or self._seen is None or self._goal is None:
            return None
        self._planned = self._observations
        course = self._course if self._queue else replace(self._course, blocks=None)
        left = None if self._budget is None else self._budget - self._ticks
        return Job(
            self._seen, self._goal, self._observations, self._ticks, self._executed, course, left,
            self._trail.take(), self._trail.anchor,
        )  # fmt: skip

    def deliver(self, job: Job, made: Delivery, delay: int = 0) -> None:
        """A plan is made; on simulated time it is there so many ticks after its job."""
        if made.plan.status == "bad_input":
            self.fail(ValueError("the encoder's latents are not finite"))
        elif not np.isfinite(made.actions).all():
            self.fail(ValueError("the plan has actions that are not finite"))
        else:
            self._coming = (job.tick + delay, job, made)
            self._arrive()

    def _arrive(self) -> None:
        """Take the plan that was made, once it is there."""
        if self._coming is None or self._coming[0] > self._ticks:
            return
        _, job, made = self._coming
        self._coming = None
        if job.number < self._valid_from:
            return  # made from what is not true any more
        passed, actions = self._executed - job.executed, made.actions
        if self.config.late == "drop" and passed < len(actions):
            actions = actions[passed:]
        self._queue = deque(np.clip(actions, self._low, self._high))
        self._arrived = "best-so-far" if made.plan.status == "deadline" else "plan"
        self._of_plan = 0
        self._course, self.last = made.course, made

    def fail(self, error: BaseException) -> None:
        """Planning raised; the plan at hand goes on."""
        self.failures += 1
        self.last_error = error

    # Acting.

    def tick(self, now: float = 0.0, due: float | None = None) -> Tick:
        """Decide what to do now."""
        reason = self._why_hold(now)
        if reason:
            source, action = "hold", self._hold
            if reason != "no plan":
                self._queue.clear()
                self._valid_from = self._observations + 1
        else:
            source, action = self._arrived or "rest", self._queue.popleft()
            self._executed += 1
            self._of_plan += 1
        self._arrived = None
        self.sources[source] += 1
        if reason:
            self.reasons[reason] += 1
        self._trail.act(action)
        late = 0.0 if due is None else now - due
        done = Tick(self._ticks, now, late, source, reason, action.copy())  # type: ignore[arg-type]
        self._ticks += 1
        self._arrive()
        return done

    def _why_hold(self, now: float) -> str:
        if self._problem:
            return self._problem
        if now - self._seen_at > self._max_age_s:
            return "stale observation"
        return "" if self._queue else "no plan"


class Body(Protocol):
    """What a loop controls on simulated time."""

    def look(self, loop: Loop) -> None:
        """Tell the loop what is seen, and wanted."""

    def planned(self, made: Delivery) -> None:
        """A plan was made."""

    def act(self, tick: Tick) -> None:
        """Do what a tick decided."""


def step_together(
    bodies: Sequence[tuple[Body, Loop]],
    plan: Callable[[Sequence[Job]], Sequence[Delivery]],
    delay: int = 0,
    now: float = 0.0,
) -> None:
    """One tick of many loops; those whose time it is look, and plan together.

    Args:
        bodies: What is controlled, each with its loop.
        plan: Makes plans, see `Pilot.plan`.
        delay: Ticks until a plan that is begun now is there.
        now: The time.
    """
    for body, loop in bodies:
        if loop.wants_look:
            body.look(loop)
    begun = [(body, loop, job) for body, loop in bodies if (job := loop.next_job()) is not None]
    if begun:
        for (body, loop, job), made in zip(begun, plan([job for *_, job in begun]), strict=True):
            failed = loop.failures
            loop.deliver(job, made, delay)
            if loop.failures != failed:
                log.warning("planning failed: %s", loop.last_error)
            body.planned(made)
    for body, loop in bodies:
        body.act(loop.tick(now))
