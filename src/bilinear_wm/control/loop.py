"""What a real-time controller decides, without threads and without a clock.

`ControlState` knows what is seen, wanted and planned, and decides ticks; `simulate` runs it on
simulated time. `realtime.py` adds the threads.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bilinear_wm.errors import InputError

log = logging.getLogger(__name__)

Action = NDArray[np.float32]
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

    picture: NDArray[np.uint8]
    goal: NDArray[np.uint8]
    observation: int
    """Number of the observation it starts from."""
    tick: int
    """Number of the next tick."""
    executed: int
    """Planned actions that were executed before it."""


class ControlState:
    """What is seen, wanted and planned; decides ticks. Safe to use from several threads.

    Args:
        action_low: Smallest action.
        action_high: Largest action.
        hold: What holding means; zeros by default.
        max_age_s: Observations older than this are stale.
        replan: Plan from every new observation, or only when the plan at hand is `exhausted`.
    """

    def __init__(
        self,
        action_low: Action,
        action_high: Action,
        hold: ArrayLike | None = None,
        max_age_s: float = math.inf,
        replan: Literal["always", "exhausted"] = "always",
    ) -> None:
        self._low, self._high = action_low, action_high
        wanted = np.zeros_like(action_low) if hold is None else np.asarray(hold, np.float32)
        if wanted.shape != action_low.shape or not np.isfinite(wanted).all():
            raise InputError(f"hold: expected {action_low.size} finite numbers, found {hold!r}")
        self._hold = np.clip(wanted, action_low, action_high)
        self._max_age_s, self._replan = max_age_s, replan
        self._changed = threading.Condition()
        self._picture: NDArray[np.uint8] | None = None
        self._goal: NDArray[np.uint8] | None = None
        self._seen_at = -math.inf
        self._problem = "no observation"
        self._observations = self._planned = self._valid_from = self._executed = 0
        self._queue: deque[Action] = deque()
        self._arrived: Source | None = None
        self._ticks = 0
        self.sources: Counter[str] = Counter()
        """How often each source was used."""
        self.reasons: Counter[str] = Counter()
        """Why it held, and how often."""
        self.failures = 0
        """Plans that ended in an exception or were not finite."""
        self.last_error: Exception | None = None

    def observe(self, picture: ArrayLike, at: float) -> None:
        """Take what a camera saw at a time; what is not finite is reported, not planned from."""
        pixels, problem = _checked(picture)
        with self._changed:
            self._picture, self._problem, self._seen_at = pixels, problem, at
            self._observations += 1
            self._changed.notify_all()

    def set_goal(self, picture: ArrayLike) -> None:
        pixels, problem = _checked(picture)
        if pixels is None:
            raise InputError(f"goal: {problem}")
        with self._changed:
            self._goal = pixels
            self._changed.notify_all()

    def next_job(self, timeout: float | None = 0.0) -> Job | None:
        """Something worth planning, waiting for it at most so long."""
        with self._changed:
            self._changed.wait_for(self._worth_planning, timeout)
            if not self._worth_planning() or self._picture is None or self._goal is None:
                return None
            self._planned = self._observations
            return Job(self._picture, self._goal, self._observations, self._ticks, self._executed)

    def wake(self) -> None:
        """End the wait in `next_job`."""
        with self._changed:
            self._changed.notify_all()

    def _worth_planning(self) -> bool:
        if self._picture is None or self._goal is None or self._planned == self._observations:
            return False
        return self._replan == "always" or not self._queue

    def deliver(self, job: Job, actions: Action, complete: bool) -> None:
        """A plan is there: raw actions, one row a tick.

        While it was made, the plan before it went on. As many of its own first actions are left
        out, unless that would be all of them.
        """
        if not np.isfinite(actions).all():
            self.fail(ValueError("the plan has actions that are not finite"))
            return
        with self._changed:
            if job.observation < self._valid_from:
                return  # made from what is not true any more
            passed = self._executed - job.executed
            left = actions[passed:] if passed < len(actions) else actions
            self._queue = deque(np.clip(left, self._low, self._high))
            self._arrived = "plan" if complete else "best-so-far"

    def fail(self, error: Exception) -> None:
        """Planning raised; the plan at hand goes on."""
        with self._changed:
            self.failures += 1
            self.last_error = error
        log.warning("planning failed: %s", error)

    def tick(self, now: float, due: float | None = None) -> Tick:
        """Decide what to do now."""
        with self._changed:
            reason = self._why_hold(now)
            if reason:
                source, action = "hold", self._hold
                if reason != "no plan":
                    self._queue.clear()
                    self._valid_from = self._observations + 1
            else:
                source, action = self._arrived or "rest", self._queue.popleft()
                self._executed += 1
                if self._replan == "exhausted" and not self._queue:
                    self._changed.notify_all()
            self._arrived = None
            self.sources[source] += 1
            if reason:
                self.reasons[reason] += 1
            self._ticks += 1
            late = 0.0 if due is None else now - due
            return Tick(self._ticks - 1, now, late, source, reason, action.copy())  # type: ignore[arg-type]

    def _why_hold(self, now: float) -> str:
        if self._problem:
            return self._problem
        if now - self._seen_at > self._max_age_s:
            return "stale observation"
        return "" if self._queue else "no plan"


def simulate(
    state: ControlState,
    plan: Callable[[Job], tuple[Action, bool]],
    planning_time: Callable[[int], float],
    world: Callable[[int, Action], ArrayLike | None],
    ticks: int,
    period_s: float,
) -> list[Tick]:
    """The controller on simulated time, one thread, the same every time.

    Args:
        state: Has a goal already.
        plan: What the planner would do; may raise.
        planning_time: Seconds that the n-th plan takes.
        world: Takes the number of a tick and its action, gives the next observation, or None
            while the camera is silent.
        ticks: How many.
        period_s: Time between them.
    """
    done: list[Tick] = []
    busy: tuple[float, Job] | None = None
    planned = 0
    for index in range(ticks):
        now = index * period_s
        while busy is not None and busy[0] <= now + 1e-12:
            at, job = busy
            try:
                actions, complete = plan(job)
            except Exception as error:
                state.fail(error)
            else:
                state.deliver(job, actions, complete)
            following = state.next_job()
            busy = None if following is None else (at + planning_time(planned), following)
            planned += following is not None
        tick = state.tick(now, now)
        done.append(tick)
        picture = world(index, tick.action)
        if picture is not None:
            state.observe(picture, now)
        if busy is None and (waiting := state.next_job()) is not None:
            busy = now + planning_time(planned), waiting
            planned += 1
    return done


def _checked(picture: ArrayLike) -> tuple[NDArray[np.uint8] | None, str]:
    """A picture as bytes, or what is wrong with it."""
    pixels = picture.cpu().numpy() if isinstance(picture, torch.Tensor) else np.asarray(picture)
    if pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise InputError(f"picture: expected (height, width, 3), found shape {pixels.shape}")
    if pixels.dtype == np.uint8:
        return pixels.copy(), ""
    if not np.isfinite(pixels).all():
        return None, "observation is not finite"
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), ""
